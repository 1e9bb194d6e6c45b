"""The task assignor: where tasks belong, from a view of the group to a target assignment; pure.

One rule: the same view gives the same target, and the identity where nothing is to be improved; safety is not decided here.
Imported by group, coordinator, explain and simulator. Start at assign.py (the order of the phases), then builder.py.
"""
