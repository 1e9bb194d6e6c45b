"""Small apps on real data, each run by a test.

One rule: an example imports what a user imports, from `orchestrator`, and nothing of the rooms behind it.
Imported by tests and the tour; no room imports it. Start at `bank.py`.
"""
