"""How well a group rebalances: one workload under every protocol, in virtual time, on the real cores.

One rule: the same workload gives the same figures, everywhere; no clock, no chance. `orchestrator bench rebalance`.
"""
