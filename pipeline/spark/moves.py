"""What a repartition writes: rows that Spark keeps on the disks of its executors until the log has them.

One rule: they are never gathered. Spark's own partitions are cut so small that the driver may hold one of them, and what it gives
the log is a part of that, or some. In the flow: `relocation` finds the rows -> here -> `repartition` writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.spark.session import failure
from state.log.protocol import NewRecord, Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.spark.final_records import Part

ROWS = "kind string, topic string, here int, there int, key binary, key_there binary, value binary, number bigint, headers binary"
MOVED, WRITTEN, SENT = "moved", "written", "sent"
CUT = 50_000  # entries of a partition of Spark
FEW = 10_000  # of all: one partition


def cut_for(session: SparkSession, entries: int) -> dict[str, str]:
    """What Spark is set to, so that shuffles of so many entries have partitions of CUT, and stay as they are."""
    slots = session.sparkContext.defaultParallelism if entries > FEW else 1
    return {
        "spark.sql.shuffle.partitions": str(max(slots, -(-entries // CUT))),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }


@contextmanager
def set_to(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for the time of a `with` block."""
    before = {key: session.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, kept in before.items():
            if kept is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, kept)


class Moves:
    """Rows of ROWS. They are kept until it is closed."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._kept: list[DataFrame] = []
        self._frames: list[tuple[str, DataFrame]] = []

    def keep(self, rows: DataFrame) -> DataFrame:
        """Computed once: user code may be called for them."""
        from pyspark import StorageLevel

        kept = rows.persist(StorageLevel.DISK_ONLY)
        self._kept.append(kept)
        return kept

    def add(self, kind: str, rows: DataFrame) -> None:
        """Some that are to be written, all of one kind."""
        self._frames.append((kind, rows))

    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many rows of each kind, and the bytes of their keys and values."""
        from pyspark.sql import functions as F

        found: dict[str, tuple[int, int]] = {}
        size = F.sum(F.ifnull(F.length("key"), F.lit(0)) + F.ifnull(F.length("value"), F.lit(0)))
        for kind, frame in self._frames:
            [(rows, bytes_)] = frame.agg(F.count("*"), size).collect()
            before = found.get(kind, (0, 0))
            found[kind] = before[0] + int(rows), before[1] + int(bytes_ or 0)
        return found

    def parts(self, at_ms: int, kinds: Collection[str]) -> Iterator[Part]:
        """The records of rows of these kinds, some at a time; what a task has sent to a partition is in its order. Entries get this
        time. Raises SparkFailed."""
        from pipeline.spark.final_records import PART_BYTES, PART_RECORDS

        held: dict[Partition, list[NewRecord]] = {}
        count = size = 0
        for row in self._rows(kinds):
            for where, record in records(row, at_ms):
                held.setdefault(where, []).append(record)
                count += 1
                size += len(record.key or b"") + len(record.value or b"")
            if count >= PART_RECORDS or size >= PART_BYTES:
                yield held
                held, count, size = {}, 0, 0
        if held:
            yield held

    def _rows(self, kinds: Collection[str]) -> Iterator[Any]:
        try:
            for kind, frame in self._frames:
                if kind in kinds:
                    yield from frame.toLocalIterator(prefetchPartitions=True)
        except Exception as error:
            raise failure(self._session, error) from error

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept, self._frames = [], []


def records(row: Any, at_ms: int) -> Iterator[tuple[Partition, NewRecord]]:
    """What one row comes to: of an entry that moves a deletion where it was, and the entry where it belongs."""
    topic, key, value = row["topic"], _bytes(row["key"]), _bytes(row["value"])
    if row["kind"] == SENT:
        from pipeline.spark.rows import unpacked

        yield Partition(topic, row["there"]), NewRecord(key, value, row["number"], unpacked(_bytes(row["headers"])))
    elif row["kind"] == WRITTEN:
        yield Partition(topic, row["here"]), NewRecord(key, value, at_ms)
    else:
        yield Partition(topic, row["here"]), NewRecord(key, None, at_ms)
        yield Partition(topic, row["there"]), NewRecord(_bytes(row["key_there"]), value, at_ms)


def _bytes(cell: Any) -> bytes | None:
    return None if cell is None else bytes(cell)
