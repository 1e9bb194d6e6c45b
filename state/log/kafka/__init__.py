"""The log on Apache Kafka, and a broker for developers and tests.

One rule: what a broker's answer does not prove is not believed: outcomes are settled, ends are asked for.
Imported by workers/log and the `broker` command. Start at `log.py`, then `lease.py`; security: `access.py`, `rights.py`.
"""
