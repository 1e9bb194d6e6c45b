"""Runs tasks: instances, worker processes, fetch, process, commit, restore.

One rule: rooms import downwards, commands -> fleet -> instance -> worker -> tasks -> connection -> log -> calls; what they all
share lies here. Imported by pipeline/spark. Start at `worker/worker.py`.
"""
