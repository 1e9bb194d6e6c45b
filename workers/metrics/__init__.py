"""Metrics of an instance: what is measured, how it is written for Prometheus, and where it is served.

One rule: to count costs a record nothing that its bar would notice; names and labels stand in one table.
Imported by worker/, instance/ and commands/ (the board). Start at `families.py`; `measures.py` holds the values,
`page.py` writes them, `server.py` serves them.
"""
