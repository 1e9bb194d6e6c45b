"""The rebalance benchmark: one workload under every protocol, with modelled delays, on the real cores.

One rule: the same workload gives the same figures, everywhere; no clock, no chance. `orchestrator bench rebalance`.
Imported by cli/bench.py, tests and benchmarks. Start at workload.py (what is asked), then rehearsal.py.
"""
