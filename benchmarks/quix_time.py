"""The counts and the join of `benchmarks/time_apps.py` in Quix Streams, for a figure beside ours: run by `benchmarks/rivals.py`.

One rule: it imports nothing of ours, because it runs in the Python that QUIX_PYTHON names, which has quixstreams and not us. What it
prints last is records per CPU-second of this process, from its first record to its last checkpoint.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

PARTITIONS, APART_MS = 8, 5
TOPIC, OTHER = "events", "others"


def write(broker: str, prefix: str, form: str, records: int, keys: int) -> None:
    """The records of `benchmarks.time.write_input`, on a broker."""
    topics = [TOPIC, OTHER] if form == "joining" else [TOPIC]
    kafka: Any = importlib.import_module("confluent_kafka")
    admin: Any = importlib.import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": broker})
    # Without it the broker deletes, half a minute later, records that are as old as their times say.
    forever = {"retention.ms": "-1"}
    made = [admin.NewTopic(prefix + topic, PARTITIONS, 1, config=forever) for topic in topics]
    for future in client.create_topics(made).values():
        future.result()
    producer = kafka.Producer(
        {
            "bootstrap.servers": broker,
            "partitioner": "murmur2",
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(records // len(topics)):
        key = b"key-%012d" % (number * 7_919 % keys)
        for at, topic in enumerate(topics):
            at_ms = 1_000 + number * len(topics) + at * APART_MS
            producer.produce(prefix + topic, key=key, value=b"x" * 100, timestamp=at_ms)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


class Meter:
    """CPU time of this process since its first record; it stops the application after the last one (`count` of `run` is of
    outputs: a join has half as many as records, six windows six times as many)."""

    def __init__(self, records: int) -> None:
        self.began: float | None = None
        self.seen = 0
        self.records = records
        self.stop: Callable[[], None] = lambda: None

    def note(self, topic: str, partition: int, offset: int) -> None:
        if self.began is None:
            self.began = time.process_time()
        self.seen += 1
        if self.seen == self.records:
            self.stop()

    def rate(self) -> float:
        assert self.began is not None
        return self.seen / (time.process_time() - self.began)


def build(app: Any, prefix: str, form: str) -> None:
    """What the form asks for, as Quix's own pages write it."""
    kind = "str" if form == "joining" else "bytes"  # what a join keeps is written as JSON
    events = app.dataframe(topic=app.topic(prefix + TOPIC, key_deserializer="bytes", value_deserializer=kind))
    if form == "plain":
        events.apply(_count, stateful=True)
    elif form == "tumbling":
        events.tumbling_window(60_000).count().current()
    elif form == "hopping":
        events.hopping_window(60_000, 10_000).count().current()
    elif form == "sessions":
        events.session_window(30_000).count().current()
    else:
        others = app.dataframe(topic=app.topic(prefix + OTHER, key_deserializer="bytes", value_deserializer=kind))
        pairs = app.topic(f"{prefix}pairs", key_serializer="bytes", value_serializer=kind)
        joined = events.join_interval(
            others, on_merge=lambda one, other: one, grace_ms=10_000, backward_ms=10_000, forward_ms=10_000
        )
        joined.to_topic(pairs)


def _count(value: Any, state: Any) -> Any:
    count = state.get("count", 0) + 1
    state.set("count", count)
    return count


def run(broker: str, prefix: str, form: str, records: int) -> float:
    quix: Any = importlib.import_module("quixstreams")
    meter = Meter(records)
    with tempfile.TemporaryDirectory() as state:
        app = quix.Application(
            broker_address=broker,
            consumer_group=uuid.uuid4().hex,
            auto_offset_reset="earliest",
            processing_guarantee="exactly-once",
            state_dir=state,
            on_message_processed=meter.note,
            loglevel="ERROR",
        )
        build(app, prefix, form)
        meter.stop = app.stop
        app.run(timeout=60, collect=False)
    if meter.seen < records:
        raise SystemExit(f"{meter.seen} of {records} records were processed")
    return meter.rate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts and a join in Quix Streams.")
    parser.add_argument("what", choices=["write", "run"])
    parser.add_argument("form", choices=["plain", "tumbling", "hopping", "sessions", "joining"])
    parser.add_argument("--broker", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    args = parser.parse_args()
    if args.what == "write":
        write(args.broker, args.prefix, args.form, args.records, args.keys)
        return
    print(run(args.broker, args.prefix, args.form, args.records))


if __name__ == "__main__":
    main()
