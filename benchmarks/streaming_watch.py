"""The load of `benchmarks/structured_streaming.py` and what becomes of it, seen from outside: when which count could be read.

One rule: a record is answered by the first count of its key that has it in it, read by a third party that reads committed records alone;
it began when its producer wrote it. So one measure fits a count for each record and a count for each batch.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.streaming_apps import PARTITIONS
from pipeline.values.partitioner import partition_of
from state.log.batches import decode
from state.log.protocol import GroupLog, NewRecord, Partition, TopicSpec

TURN_S = 0.01  # between two writes of the producer
CHUNK = 20_000
STEP = 7_919  # keys do not come in their order
VALUE = b"x" * 100


def key_of(number: int, keys: int) -> int:
    return number * STEP % keys


def record(key: int) -> tuple[Partition, NewRecord]:
    """Without its topic's name."""
    name = b"key-%012d" % key
    return Partition("", partition_of(name, PARTITIONS)), NewRecord(name, VALUE, int(time.time() * 1e3))


async def fill(log: GroupLog, topic: str, records: int, keys: int) -> None:
    """A topic with so many records of so many keys."""
    await log.create_topic(TopicSpec(topic, PARTITIONS))
    for first in range(0, records, CHUNK):
        made: dict[Partition, list[NewRecord]] = {}
        for number in range(first, min(first + CHUNK, records)):
            place, one = record(key_of(number, keys))
            made.setdefault(Partition(topic, place.number), []).append(one)
        await log.append(made)


@dataclass(slots=True)
class Seen:
    """What was read: of each answered record when it was written and when it was answered, of each partition when a count came, and how
    many counts came that said nothing new of their key. Seconds of one clock."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    outputs: list[list[float]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    repeated: int = 0

    def waited_ms(self, first: float, last: float) -> list[float]:
        """Of the records written then, how long each was without an answer."""
        return [(answered - written) * 1e3 for written, answered in self.answers if first <= written <= last]

    def longest_gap_ms(self, first: float, last: float) -> float:
        """The longest time without a count of some partition that touches these moments."""
        gaps = (pair for mine in self.outputs for pair in pairwise(mine) if pair[1] >= first and pair[0] <= last)
        return max((b - a for a, b in gaps), default=0.0) * 1e3


class Load:
    """A producer of `rate` records a second, and when it wrote the nth record of each key (those before it: never)."""

    def __init__(self, log: GroupLog, topic: str, rate: int, keys: int, before: int) -> None:
        self._log, self._topic, self._rate, self._keys, self._before = log, topic, rate, keys, before
        self.written: list[list[float | None]] = [[] for _ in range(keys)]
        for number in range(before):
            self.written[key_of(number, keys)].append(None)
        self.stopped = False

    async def run(self) -> None:
        """Until `stopped`. A producer that was late writes what is due at once."""
        began, done = time.monotonic(), 0
        while not self.stopped:
            now = time.monotonic()
            due = int((now - began) * self._rate)
            made: dict[Partition, list[NewRecord]] = {}
            for number in range(done, due):
                key = key_of(self._before + number, self._keys)
                place, one = record(key)
                made.setdefault(Partition(self._topic, place.number), []).append(one)
                self.written[key].append(now)
            if made:
                await self._log.append(made)
                done = due
            await asyncio.sleep(TURN_S)

    def total(self) -> int:
        return sum(map(len, self.written))


class Watch:
    """Reads the topic of counts until cancelled."""

    def __init__(self, log: GroupLog, topic: str, load: Load) -> None:
        self._log, self._topic, self._load = log, topic, load
        self.counts = [0] * len(load.written)
        self.seen = Seen()

    async def run(self) -> None:
        reader = self._log.reader()
        try:
            for number in range(PARTITIONS):
                reader.add(Partition(self._topic, number), 0)
            while True:
                for part in await reader.poll(wait_ms=1_000):
                    now = time.monotonic()
                    self.seen.outputs[part.partition.number].append(now)
                    for one in decode(part.data, part.position):
                        self.take(int((one.key or b"")[4:]), int(one.value or b"0"), now)
        finally:
            await reader.close()

    def take(self, key: int, count: int, now: float) -> None:
        before, written = self.counts[key], self._load.written[key]
        if count <= before:
            self.seen.repeated += 1
            return
        self.seen.answers += [(at, now) for at in written[before:count] if at is not None]
        self.counts[key] = count

    def total(self) -> int:
        return sum(self.counts)

    def wrong(self) -> int:
        """Keys whose last count is not that of the records written."""
        return sum(count != len(written) for count, written in zip(self.counts, self._load.written, strict=True))


async def last_counts(log: GroupLog, topic: str) -> tuple[dict[bytes, int], int]:
    """The highest count of each key in a topic that nobody writes to any more, and how many records it has."""
    reader, found, records = log.reader(), dict[bytes, int](), 0
    places = [Partition(topic, number) for number in range(PARTITIONS)]
    left = {place: end for place, end in (await log.ends(places, settled=True)).items() if end}
    for place in left:
        reader.add(place, 0)
    try:
        while left:
            for part in await reader.poll(max_bytes_per_partition=4 << 20, wait_ms=1_000):
                for one in decode(part.data, part.position):
                    records += 1
                    key, count = one.key or b"", int(one.value or b"0")
                    found[key] = max(found.get(key, 0), count)
                if part.next_position >= left.get(part.partition, 0):
                    left.pop(part.partition, None)
                    reader.drop(part.partition)
    finally:
        await reader.close()
    return found, records
