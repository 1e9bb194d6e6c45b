"""Durable bytes: logs, stores, changelogs, snapshots.

One rule: it knows keys, offsets and histories, nothing of groups or apps.
Imported by workers and pipeline/spark. Start at `log/protocol.py` and `store/protocol.py`; snapshots: `snapshot.py`.
"""
