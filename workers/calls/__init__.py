"""A call of user code, seen from beside it: how long it lasts, and which record ended the process during one.

One rule: it costs nothing while nothing lasts or crashes. Imported by every room of workers/. Start at `blame.py`.
"""
