"""The group: which member may run which task, decided safely; pure.

One rule: events and the time come in as arguments and effects go out; nothing here waits, reads a clock or opens a file.
Imported by coordinator, explain and simulator. Start at step.py (the events and what follows), then changes.py and apply.py,
reconcile.py and state.py.
"""
