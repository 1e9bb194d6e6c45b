"""The data pipeline on Spark: history, snapshots, hosting, audits.

One rule: the only room that imports pyspark, and only within the functions that need it.
Imported by no other room; the table of commands names it. Start at `backfill.py`, then `engine.py`; instances: `hosting.py`.
"""
