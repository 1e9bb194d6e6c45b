"""What an app declares: topics, tables, windows, joins, processors; and the subtopologies that follow from it.

One rule: a definition is never the data, and what cannot be meant is refused when the user's module is imported.
Imported by `pipeline/app.py`, by calls, workers and pipeline/spark. Start at `definition.py`, then `topology.py`.
"""
