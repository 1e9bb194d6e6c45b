"""An instance: the parent of worker processes, with one listener, and a candidate for coordinator.

One rule: it runs no user code. Imported by fleet/ and commands/. Start at `instance.py`.
"""
