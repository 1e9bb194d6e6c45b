"""The calls of user code in one task: one by one, in batches, several at once, and those that time makes due.

One rule: a call counts whole or not at all, and what counts is the completed prefix of each partition.
Imported by `pipeline/process.py`, and by workers for the effects. Start at `steps.py`, then `call.py`.
"""
