"""What a repartition writes: rows that Spark keeps on the disks of its executors until the log has them.

One rule: they are never gathered. Spark's own partitions are cut so small that the driver may hold one of them, and what it gives
the log is a part of that, or some. A row has many entries, as the bytes of an Arrow table: one by one, Spark and the driver need
several times as long. In the flow: `relocation` finds the rows -> here -> `repartition` writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.spark.session import failure
from state.log.protocol import NewRecord, Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.spark.final_records import Part

PACKED = "kind string, topic string, here int, rows bigint, bytes bigint, records binary"
MOVED, WRITTEN, SENT, DUE, STRAY = "moved", "written", "sent", "due", "stray"
PIECE_ROWS, PIECE_BYTES = 5_000, 4 << 20  # of a row
CUT = 50_000  # entries of a partition of Spark
FEW = 10_000  # of all: one partition


def cut_for(session: SparkSession, entries: int) -> dict[str, str]:
    """What Spark is set to, so that shuffles of so many entries have partitions of CUT, and stay as they are."""
    slots = session.sparkContext.defaultParallelism if entries > FEW else 1
    return {
        "spark.sql.shuffle.partitions": str(max(slots, -(-entries // CUT))),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }


class Moves:
    """Rows of PACKED. They are kept until it is closed."""

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
        """How many records or entries of each kind, and the bytes of their keys and values."""
        from pyspark.sql import functions as F

        found: dict[str, tuple[int, int]] = {}
        for kind, frame in self._frames:
            [(rows, bytes_)] = frame.agg(F.sum("rows"), F.sum("bytes")).collect()
            before = found.get(kind, (0, 0))
            found[kind] = before[0] + int(rows or 0), before[1] + int(bytes_ or 0)
        return found

    def parts(self, at_ms: int, kinds: Collection[str]) -> Iterator[Part]:
        """The records of rows of these kinds, some at a time; what a task has sent to a partition is in its order. Entries get this
        time. Raises SparkFailed."""
        from pipeline.spark.final_records import PART_BYTES, PART_RECORDS

        held: dict[Partition, list[NewRecord]] = {}
        count = size = 0
        for row in self._rows(kinds):
            for together in records(row, at_ms):
                for where, record in together:
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


# ---------------------------------------------------------------- rows


def packed(kind: str, topic: str, here: int, **columns: pa.Array) -> Iterator[dict[str, Any]]:
    """Rows with the records or entries whose columns these are: `there` (where they belong, or are written), `key`; some have
    `key_there`, `value`, `number` (a time), `headers`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    waiting = [pa.record_batch(list(columns.values()), list(columns))]
    while waiting:
        some = waiting.pop()
        if some.num_rows > 1 and (some.num_rows > PIECE_ROWS or some.nbytes > PIECE_BYTES):
            half = some.num_rows // 2
            waiting += [some.slice(half), some.slice(0, half)]
            continue
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, some.schema) as writer:
            writer.write_batch(some)
        lengths = (pc.sum(pc.binary_length(some[name])).as_py() for name in ("key", "value") if name in columns)
        facts = {"kind": kind, "topic": topic, "here": here, "rows": some.num_rows}
        yield {**facts, "bytes": sum(size or 0 for size in lengths), "records": stream.getvalue().to_pybytes()}


def packed_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows as Spark takes them from Python."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in PACKED.split(", "))])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def columns_of(row: Any) -> dict[str, list[Any]]:
    """What `packed` was given."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(row["records"])) as stream:
        table = stream.read_all()
    return {name: table[name].to_numpy().tolist() for name in table.column_names}


def records(row: Any, at_ms: int) -> Iterator[tuple[tuple[Partition, NewRecord], ...]]:
    """What one row comes to, with what is written together: of an entry that moves a deletion where it was, and the entry where it
    belongs."""
    columns, topic = columns_of(row), row["topic"]
    there = [Partition(topic, number) for number in columns["there"]]
    keys, values = columns["key"], columns["value"]
    if row["kind"] == SENT:
        from pipeline.spark.rows import unpacked

        sent = zip(there, keys, values, columns["number"], columns["headers"], strict=True)
        for where, key, value, number, headers in sent:
            yield ((where, NewRecord(key, value, number, unpacked(headers))),)
    elif row["kind"] == WRITTEN:
        for where, key, value in zip(there, keys, values, strict=True):
            yield ((where, NewRecord(key, value, at_ms)),)
    else:
        here = Partition(topic, row["here"])
        for where, key, key_there, value in zip(there, keys, columns["key_there"], values, strict=True):
            yield (here, NewRecord(key, None, at_ms)), (where, NewRecord(key_there, value, at_ms))
