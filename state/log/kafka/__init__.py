"""The log on Apache Kafka, and a broker for developers and tests; start reading at `log.py`."""
