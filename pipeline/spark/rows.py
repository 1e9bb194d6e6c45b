"""Records as rows: the one shape in which Spark, the executors and the Parquet files between them exchange records.

One rule: sorted by PLACE, the rows of a task are in the order in which the task takes them live: by the smallest
timestamp among the heads of its sources. `order_ms` (the running maximum of the timestamps of a source) makes a sort of
what is a merge otherwise. A source is (topic, upstream): a partition of a topic, or what one task sent into a re-key.
`headers` are one binary column (MessagePack, null for none): a list of structs costs Spark ten times the whole rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice, repeat, takewhile
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.columns.numbers import of_bytes, to_numpy
from pipeline.columns.raw import RawColumns
from pipeline.records import Headers, OutputRecord, SourceRecord

ROWS = pa.schema(
    [
        ("pid", pa.int32()),
        ("order_ms", pa.int64()),
        ("topic", pa.string()),
        ("upstream", pa.int32()),
        ("seq", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
    ]
)
COLUMNS = (
    "pid int, order_ms bigint, topic string, upstream int, seq bigint, timestamp_ms bigint, key binary, value binary, "
    "headers binary"
)
PLACE = ("order_ms", "topic", "upstream", "seq")
PAIRS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
FLUSH_ROWS, FLUSH_BYTES = 20_000, 64 << 20
HELD_ROWS = 2_000  # of each file that is read beside others
_PID = ROWS.names.index("pid")


class Row(NamedTuple):
    """A row of ROWS."""

    pid: int
    order_ms: int
    topic: str
    upstream: int
    seq: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes | None


_headers = msgspec.msgpack.Decoder(Headers)


def packed(headers: Headers) -> bytes | None:
    """Headers as a cell."""
    return msgspec.msgpack.encode(headers) if headers else None


def unpacked(cell: bytes | None) -> Headers:
    return _headers.decode(cell) if cell else ()


def table_of(rows: list[Row]) -> pa.Table:
    """Rows as an Arrow table."""
    columns = zip(*rows, strict=True) if rows else [()] * len(ROWS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)


class Rows(NamedTuple):
    """Records in their order: the topic of each, and a batch with the columns seq, timestamp_ms, key, value and headers."""

    topics: list[str]
    batch: pa.RecordBatch


def of_records(batch: pa.RecordBatch) -> Rows:
    """The rows of a batch of ROWS that are records."""
    topics = batch.column("topic").to_pylist()
    if "" in topics:
        batch = batch.filter(pc.not_equal(batch.column("topic"), ""))
        topics = [topic for topic in topics if topic]
    return Rows(topics, batch)


def records(rows: Rows) -> list[tuple[str, SourceRecord]]:
    """The same as objects."""
    batch = rows.batch
    count = batch.num_rows
    headers = batch.column("headers")
    listed = repeat((), count) if headers.null_count == count else map(unpacked, headers.to_pylist())
    found = map(
        SourceRecord,
        batch.column("seq").to_pylist(),
        batch.column("timestamp_ms").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        listed,
    )
    return list(zip(rows.topics, found, strict=True))


def in_columns(rows: Rows) -> list[RawColumns]:
    """The same without an object for each, a piece for those of one topic that follow each other."""
    pieces: list[RawColumns] = []
    topics, batch = rows
    first = 0
    while first < len(topics):
        count = sum(1 for _ in takewhile(topics[first].__eq__, islice(topics, first, None)))
        piece = batch.slice(first, count)
        times, offsets = (to_numpy(piece.column(name)) for name in ("timestamp_ms", "seq"))
        keys, values = piece.column("key"), piece.column("value")
        made = partial(_records_alone, Rows(topics[first : first + count], piece))
        pieces.append(RawColumns(topics[first], keys, values, times, offsets, made))
        first += count
    return pieces


def _records_alone(rows: Rows) -> list[SourceRecord]:
    return [record for _, record in records(rows)]


class Written:
    """Collects what one task sends to one topic into a Parquet file, in the order it was sent to each partition. A row group is
    of one partition, so that those of one can be read alone."""

    def __init__(self, path: Path, topic: str, upstream: int) -> None:
        self._path = path
        self._topic = topic
        self._upstream = upstream
        self._rows: list[Row] = []
        self._order: dict[int, int] = {}
        self._file: pq.ParquetWriter | None = None
        self.count = 0
        self.counts: dict[int, int] = {}  # by partition
        self.oldest_ms: int | None = None

    def add(self, partition: int, outputs: list[OutputRecord]) -> None:
        running = self._order.get(partition)
        for out in outputs:
            running = out.timestamp_ms if running is None else max(running, out.timestamp_ms)
            self._rows.append(
                Row(
                    partition,
                    running,
                    self._topic,
                    self._upstream,
                    self.count,
                    out.timestamp_ms,
                    out.key,
                    out.value,
                    packed(out.headers),
                )
            )
            self.count += 1
        if running is not None:
            self._order[partition] = running
            oldest_ms = min(out.timestamp_ms for out in outputs) if outputs else running
            self.oldest_ms = oldest_ms if self.oldest_ms is None else min(oldest_ms, self.oldest_ms)
        self.counts[partition] = self.counts.get(partition, 0) + len(outputs)
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if self._file is None:
            self._file = pq.ParquetWriter(self._path, ROWS)
        self._rows.sort(key=lambda row: row.pid)
        for _, rows in groupby(self._rows, key=lambda row: row.pid):
            self._file.write_table(table_of(list(rows)))
        self._rows = []


def write_pairs(path: Path, pairs: Iterator[tuple[bytes, bytes]]) -> int:
    """The final entries of a table, in key order; returns how many there are."""
    count = 0
    with pq.ParquetWriter(path, PAIRS) as file:
        for part in _parts(pairs):
            arrays = [of_bytes([pair[at] for pair in part]) for at in (0, 1)]
            file.write_table(pa.Table.from_arrays(arrays, schema=PAIRS))
            count += len(part)
    return count


def _parts(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """So many at a time as one Arrow array takes, and memory should hold."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for pair in pairs:
        part.append(pair)
        size += len(pair[0]) + len(pair[1])
        if len(part) == FLUSH_ROWS or size >= FLUSH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def read_pairs(path: Path) -> Iterator[tuple[bytes, bytes]]:
    with pq.ParquetFile(path) as file:
        for batch in batches_of(file, FLUSH_ROWS):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def batches_of(file: pq.ParquetFile, rows: int, groups: Iterable[int] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, or of all, one group after the other: Arrow keeps what it has read of all that it is asked for."""
    for group in range(file.num_row_groups) if groups is None else groups:
        yield from file.iter_batches(rows, row_groups=[group])


class Outputs:
    """What several tasks have sent to one topic; its files are open until it is closed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [pq.ParquetFile(path) for path in paths]
        self._groups: list[dict[int, list[int]]] = []
        for file in self._files:
            found: dict[int, list[int]] = {}
            for number in range(file.metadata.num_row_groups):
                found.setdefault(file.metadata.row_group(number).column(_PID).statistics.min, []).append(number)
            self._groups.append(found)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def partitions(self) -> list[int]:
        return sorted({partition for groups in self._groups for partition in groups})

    def of(self, partition: int) -> Iterator[OutputRecord]:
        """The records of a partition in the order of PLACE; some rows of each file are held."""
        files = zip(self._files, self._groups, strict=True)
        streams = [_placed(file, groups[partition]) for file, groups in files if partition in groups]
        # Tasks of two subtopologies may have one place, and records cannot be compared.
        for *_, found in heapq.merge(*streams, key=itemgetter(0, 1, 2)):
            yield OutputRecord(found.key, found.value, found.timestamp_ms, found.headers)


def _placed(file: pq.ParquetFile, groups: list[int]) -> Iterator[tuple[int, int, int, SourceRecord]]:
    for batch in batches_of(file, HELD_ROWS, groups):
        place = (batch.column(name).to_pylist() for name in ("order_ms", "upstream", "seq"))
        found = [record for _, record in records(of_records(batch))]
        yield from zip(*place, found, strict=True)
