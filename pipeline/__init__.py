"""What is computed: apps, topics, tables, processors, subtopologies. The one place that calls user code.

One rule: pure; records and the state of a task come in, and what they change and send goes out.
Imported by workers and by pipeline/spark, which carry that out. Start at `app.py`, then `process.py`.
"""
