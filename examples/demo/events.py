"""Flights and weather as records of the log. One rule: what is appended is what the app's own codecs write."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from examples import flights, flights_data
from examples.flights_data import Event
from pipeline.definitions.definition import Topic
from pipeline.values.partitioner import partition_of
from state.log.group_store import AppMetadata
from state.log.protocol import Log, NewRecord, Partition

BATCH = 20_000
LATEST_HOURS = 5


def events(first: int, last: int) -> list[Event]:
    """Both topics of months `first` to `last` (UTC), as they arrive; weather before flights of the same moment."""
    found = [*flights_data.weather(), *flights_data.flights()]
    inside = [event for event in found if first <= flights_data.month(event) <= last]
    return sorted(inside, key=arrival_ms)


def arrival_ms(event: Event) -> int:
    """When it comes: flights at their time, weather up to five hours after the hour that it is of, drawn from its key."""
    late = zlib.crc32(event.key.encode()) % (LATEST_HOURS + 1) if event.topic == "weather" else 0
    return event.timestamp_ms + late * 3_600_000


async def append(
    log: Log, batch: Sequence[Event], progress: AppMetadata | None = None, seen: bytes | None = None
) -> None:
    """One transaction, with how far the producer came."""
    topics: dict[str, Topic[Any, Any]] = {"flights": flights.flights, "weather": flights.weather}
    records: dict[Partition, list[NewRecord]] = {}
    for event in batch:
        topic = topics[event.topic]
        key = topic.key_codec.encode(event.key)
        value = topic.value_codec.encode(event.value)
        partition = Partition(topic.topic, partition_of(key, flights.PARTITIONS))
        records.setdefault(partition, []).append(NewRecord(key, value, event.timestamp_ms))
    await log.append(records, metadata=progress, seen=seen)


async def append_all(log: Log, found: Sequence[Event]) -> None:
    for start in range(0, len(found), BATCH):
        await append(log, found[start : start + BATCH])
