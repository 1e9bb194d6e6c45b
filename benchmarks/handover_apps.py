"""The app of `benchmarks/handover.py` and `benchmarks/failover.py`: a count by key with a changelog, and nothing else."""

from __future__ import annotations

from orchestrator import App, Record, Table

PARTITIONS = 8
TOPIC = "events"
CHANGELOG = "moving-counts-changelog"

moving = App("moving", partitions=PARTITIONS)
moving_events = moving.topic(TOPIC, key=str, value=bytes)
moving_counts = moving.table("counts", key=str, value=int, default=int)


@moving.processor(moving_events, moving_counts)
def count(event: Record[str, bytes], counts: Table[str, int]) -> None:
    counts[event.key] += 1
