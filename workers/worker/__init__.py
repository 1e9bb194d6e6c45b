"""A worker process: its loops (records, restores, session, watches) around the tasks that it holds.

One rule: a part knows its port (`ports.py`), never the worker. Imported by instance/ and fleet/. Start at `worker.py`.
"""
