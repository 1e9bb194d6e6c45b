"""Records as rows: the one shape in which Spark, the executors and the Parquet files between them exchange records.

One rule: sorted by PLACE, the rows of a task are in the order in which the task takes them live: by the smallest
timestamp among the heads of its sources. `order_ms` (the running maximum of the timestamps of a source) makes a sort of
what is a merge otherwise. A source is (topic, upstream): a partition of a topic, or what one task sent into a re-key.
`headers` are one binary column (MessagePack, null for none): a list of structs costs Spark ten times the whole rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

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
FLUSH_ROWS = 20_000


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


def records(batch: pa.RecordBatch) -> list[tuple[str, SourceRecord]]:
    """The records of a batch of ROWS, in its order, with the topic of each."""
    count = batch.num_rows
    headers = batch.column("headers")
    listed = [()] * count if headers.null_count == count else list(map(unpacked, headers.to_pylist()))
    found = map(
        SourceRecord,
        batch.column("seq").to_pylist(),
        batch.column("timestamp_ms").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        listed,
    )
    return list(zip(batch.column("topic").to_pylist(), found, strict=True))


def in_columns(batch: pa.RecordBatch) -> list[RawColumns]:
    """The same records without an object for each, a piece for those of one topic that follow each other."""
    pieces: list[RawColumns] = []
    topics = batch.column("topic").to_pylist()
    first = 0
    while first < len(topics):
        count = sum(1 for _ in takewhile(topics[first].__eq__, islice(topics, first, None)))
        piece = batch.slice(first, count)
        times, offsets = (piece.column(name).to_numpy() for name in ("timestamp_ms", "seq"))
        keys, values = piece.column("key"), piece.column("value")
        pieces.append(RawColumns(topics[first], keys, values, times, offsets, partial(_rows, piece)))
        first += count
    return pieces


def _rows(batch: pa.RecordBatch) -> list[SourceRecord]:
    return [record for _, record in records(batch)]


class Written:
    """Collects what one task sends to one topic into a Parquet file, in the order it was sent."""

    def __init__(self, path: Path, topic: str, upstream: int) -> None:
        self._path = path
        self._topic = topic
        self._upstream = upstream
        self._rows: list[Row] = []
        self._order: dict[int, int] = {}
        self._file: pq.ParquetWriter | None = None
        self.count = 0

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
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._path, ROWS)
        self._file.write_table(table_of(self._rows))
        self._rows = []


def write_pairs(path: Path, pairs: Iterator[tuple[bytes, bytes]]) -> int:
    """The final entries of a table, in key order; returns how many there are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with pq.ParquetWriter(path, PAIRS) as file:
        while part := list(islice(pairs, FLUSH_ROWS)):
            arrays = [pa.array([pair[at] for pair in part], pa.binary()) for at in (0, 1)]
            file.write_table(pa.Table.from_arrays(arrays, schema=PAIRS))
            count += len(part)
    return count


def read_pairs(path: Path) -> Iterator[tuple[bytes, bytes]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(FLUSH_ROWS):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def read_outputs(paths: list[Path]) -> Iterator[tuple[int, OutputRecord]]:
    """(partition, record) of what several tasks sent to one topic, in the order of PLACE."""
    if not paths:
        return
    table = pa.concat_tables([pq.read_table(path) for path in paths])
    ordered = table.sort_by([(name, "ascending") for name in PLACE])
    for batch in ordered.to_batches(FLUSH_ROWS):
        for partition, (_, found) in zip(batch.column("pid").to_pylist(), records(batch), strict=True):
            yield partition, OutputRecord(found.key, found.value, found.timestamp_ms, found.headers)
