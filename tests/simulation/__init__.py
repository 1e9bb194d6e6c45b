"""Deterministic simulation: the real cores (coordinators, members, election) in one thread, virtual time, faults.

`python -m tests.simulation --seeds 300`. A seed decides everything; a failure prints it.
"""
