"""Where topics live: the ports of a log, and its implementations in a file, in memory and on Kafka.

One rule: whatever one implementation promises, all do; `tests/contracts` runs on each.
Imported by workers and pipeline/spark. Start at `protocol.py` and `group_store.py`, then `sqlite.py` or `kafka/log.py`.
"""
