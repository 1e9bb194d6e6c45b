"""One task in its worker: its stores, its role, its commits, and whether it is halted.

One rule: positions come from completed records alone. Imported by worker/ and instance/. Start at `task.py`, then
`commit_machine.py`, which is pure.
"""
