"""The tables of a task: a dict to the user's function, a store with layers of new writes beneath.

One rule: a call that fails leaves no trace; what a call wrote is visible to the next one before the store has it.
Imported by the rooms of calls, time and definitions, and by workers. Start at `table.py`, then `view.py`.
"""
