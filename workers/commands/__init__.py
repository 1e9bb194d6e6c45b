"""The commands that need a log or a running group: run, produce, consume, status, scaling, query and others.

One rule: a command prints its answer on stdout and raises its errors; it reaches a group through its coordinator alone.
Imported by pipeline/spark alone (`run`); the table of commands names them. Start at `run.py`, then `status.py`.
"""
