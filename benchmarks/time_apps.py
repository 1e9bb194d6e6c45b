"""The apps of `benchmarks/time.py`: a count by key, plain, in windows, in sessions; and a join of two streams."""

from __future__ import annotations

from datetime import timedelta

from orchestrator import (
    App,
    Hopping,
    HoppingTable,
    Record,
    Session,
    SessionTable,
    Sink,
    Table,
    Tumbling,
    TumblingTable,
)

TOPIC, OTHER = "events", "others"
PARTITIONS = 8
TEN_S = timedelta(seconds=10)

plain = App("plain", partitions=PARTITIONS)
plain_events = plain.topic(TOPIC, key=str, value=bytes)
plain_counts = plain.table("counts", key=str, value=int, default=int)


@plain.processor(plain_events, plain_counts)
def count(event: Record[str, bytes], counts: Table[str, int]) -> None:
    counts[event.key] += 1


tumbling = App("tumbling", partitions=PARTITIONS)
tumbling_events = tumbling.topic(TOPIC, key=str, value=bytes)
tumbling_counts = tumbling.table("counts", key=str, value=int, default=int, window=Tumbling(seconds=60))


@tumbling.processor(tumbling_events, tumbling_counts)
def count_windows(event: Record[str, bytes], counts: TumblingTable[str, int]) -> None:
    counts[event.key] += 1


hopping = App("hopping", partitions=PARTITIONS)
hopping_events = hopping.topic(TOPIC, key=str, value=bytes)
hopping_counts = hopping.table("counts", key=str, value=int, default=int, window=Hopping(seconds=60, every=TEN_S))


@hopping.processor(hopping_events, hopping_counts)
def count_overlapping(event: Record[str, bytes], counts: HoppingTable[str, int]) -> None:
    for window in counts:
        window[event.key] += 1


sessions = App("sessions", partitions=PARTITIONS)
sessions_events = sessions.topic(TOPIC, key=str, value=bytes)
sessions_counts = sessions.table(
    "counts",
    key=str,
    value=int,
    default=int,
    window=Session(gap=timedelta(seconds=30), merge=lambda earlier, later: earlier + later),
)


@sessions.processor(sessions_events, sessions_counts)
def count_visits(event: Record[str, bytes], counts: SessionTable[str, int]) -> None:
    counts[event.key] += 1


joining = App("joining", partitions=PARTITIONS)
joining_events = joining.topic(TOPIC, key=str, value=bytes)
joining_others = joining.topic(OTHER, key=str, value=bytes)
joining_out = joining.topic("pairs", key=str, value=bytes)


@joining.join(joining_events, joining_others, joining_out, within=TEN_S)
def match(event: Record[str, bytes], other: Record[str, bytes], pairs: Sink[str, bytes]) -> None:
    pairs.send(event.key, event.value)


APPS = {app.id: app for app in (plain, tumbling, hopping, sessions, joining)}
BARS = {"tumbling": 0.6, "hopping": 0.15, "sessions": 0.4, "joining": 0.35}
