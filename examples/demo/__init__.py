"""The tour: `orchestrator demo`. Real input, a backfill on Spark, live instances, scaling, a kill, an independent check.

One rule: it does what an operator does, through commands and files; what it claims it has measured in that run.
Imported by no other room; the table of commands names it. Start at `command.py`, then `tour.py`.
"""
