"""Local copies of tables: the Store port and its implementations."""
