"""What lies unprocessed in the topics of re-keys while a busy app is audited: it is taken out of what Spark computes of them.

One rule: a commit writes what it sends on together with the positions of what it read, so at one moment of the log a re-key has what
the inputs up to there give, and the tasks behind it have read it up to their positions: what lies between the two is what they
would have to be given later. It is looked for by its bytes; of records that are alike the last ones are left out. In the flow:
`moment` says where, `verifying` reads it, `engine` takes it out of what a stage has sent, before the next one reads that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.spark.log_source import Slice, read
from pipeline.spark.rows import ROWS, batches_of
from state.log.protocol import Partition

MOST, MOST_BYTES = 1_000_000, 256 << 20  # records, and of keys, values and headers: they are held in the driver
READ_ROWS = 20_000
Found = tuple[int, bytes | None, bytes | None, bytes | None, int]
UnderWay = dict[str, Counter[Found]]  # by topic


def read_all(url: str, parts: Mapping[Partition, tuple[int, int]], untimed: Collection[str]) -> UnderWay | None:
    """The records of some ranges of re-keys; None where they are too much to be held. `untimed`: topics whose records may have other
    times when they are computed again."""
    found: UnderWay = {}
    size = 0
    for partition, (start, end) in parts.items():
        topic, number = partition
        of_topic = found.setdefault(topic, Counter())
        for batch in read(url, Slice(topic, number, start, end)):
            size += sum(batch.column(name).nbytes for name in ("key", "value", "headers"))
            if size > MOST_BYTES:
                return None
            pids = [number] * batch.num_rows
            of_topic.update(_rows(batch, pids, is_timed=topic not in untimed))
    return {topic: rows for topic, rows in found.items() if rows}


def take_out(paths: Sequence[Path], wanted: Counter[Found], *, is_timed: bool) -> int:
    """Takes them out of the files of what was sent to one topic; returns how many of them were not there."""
    keys = pa.array({key for _, key, *_ in wanted}, pa.binary())
    there: Counter[Found] = Counter()
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in batches_of(file, READ_ROWS):
                near = batch.filter(_is_near(batch, keys))
                there.update(row for row in _listed(near, is_timed=is_timed) if row in wanted)
    stays = Counter({row: there[row] - count for row, count in wanted.items()})
    for path in paths:
        _rewrite(path, keys, wanted, stays, is_timed=is_timed)
    return sum(max(0, count - there[row]) for row, count in wanted.items())


def _rewrite(path: Path, keys: pa.Array, wanted: Counter[Found], stays: Counter[Found], *, is_timed: bool) -> None:
    """A row group has records of one partition, before and after."""
    draft = path.with_suffix(".draft")
    with pq.ParquetFile(path) as file, pq.ParquetWriter(draft, ROWS) as into:
        for batch in batches_of(file, READ_ROWS):
            near = _is_near(batch, keys)
            goes = set()
            numbers = [number for number, is_near in enumerate(near.to_pylist()) if is_near]
            for number, row in zip(numbers, _listed(batch.filter(near), is_timed=is_timed), strict=True):
                if row not in wanted:
                    continue
                if stays[row] > 0:
                    stays[row] -= 1
                else:
                    goes.add(number)
            if goes:
                batch = batch.filter(pa.array([number not in goes for number in range(batch.num_rows)]))
            if batch.num_rows:
                into.write_batch(batch)
    draft.replace(path)


def _is_near(batch: pa.RecordBatch, keys: pa.Array) -> pa.Array:
    """Whether a row has one of the keys: few have, and the others cost no object."""
    return pc.is_in(batch.column("key"), value_set=keys)


def _listed(batch: pa.RecordBatch, *, is_timed: bool) -> list[Found]:
    return _rows(batch, batch.column("pid").to_pylist(), is_timed=is_timed)


def _rows(batch: pa.RecordBatch, pids: Sequence[int], *, is_timed: bool) -> list[Found]:
    cells: list[Any] = [batch.column(name).to_pylist() for name in ("key", "value", "headers")]
    times = batch.column("timestamp_ms").to_pylist() if is_timed else [0] * batch.num_rows
    return list(zip(pids, *cells, times, strict=True))
