"""A cluster in virtual time on the real cores: scenario files, `orchestrator simulate` and the rebalance benchmark.

One rule: the same commands give the same answer; no clock, no chance, no process.
Imported by the command line, tests and benchmarks. Start at cluster.py, then scenario.py; benchmark/ has delays.
"""
