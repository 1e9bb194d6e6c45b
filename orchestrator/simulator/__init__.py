"""A cluster in virtual time on the real cores: scenario files, `orchestrator simulate`, the rebalance benchmark, and the
simulation of the tests.

One rule: the same commands give the same answer; no clock, no chance, no process.
Imported by the command line, tests and benchmarks. Start at cluster.py, then coordinator.py and nodes.py (how effects are
carried out); scenario.py has no delays, benchmark/ models them.
"""
