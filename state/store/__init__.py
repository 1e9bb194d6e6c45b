"""Local copies of tables: the port of a store, and its implementations on RocksDB and in memory.

One rule: what a store holds and the offset up to which it holds it are written at once.
Imported by workers and pipeline/spark. Start at `protocol.py`, then `rocksdb.py`.
"""
