"""Kills of real processes, checked by id sets. `python -m tests.kills --moments 20` is the long form (`make kill`)."""
