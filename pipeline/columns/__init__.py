"""Processors that take columns: a batch as an Arrow table, tables of the task by arrays (`columns=True`).

One rule: only an app that declares such a processor loads pyarrow; `public` and `declared`, which definitions read, do not.
Imported by `pipeline/definitions`, `pipeline/calls` and `pipeline/pieces.py`. Start at `public.py`, then `batch_table.py` (records to columns) and `view.py` (a table by arrays).
"""
