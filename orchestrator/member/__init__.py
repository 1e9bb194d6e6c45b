"""A worker's side of the group: the machine that takes assignments and reports what it holds; pure.

One rule: a task runs only between a grant of the highest term seen and its release or loss.
Imported by workers, which perform the effects, and by the simulator. Start at machine.py (LIFE_CYCLE), then events.py.
"""
