"""The tables of a snapshot as a DataFrame. One rule: a file is compared with its sum before a row of it is shown."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.spark.rows import FLUSH_ROWS
from state import manifest, snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "partition int, offset bigint, key binary, value binary"
BEFORE_ALL = -1  # the entries of a snapshot come before every offset of the changelog that goes on from it


def snapshot_frame(session: SparkSession, root: Path, name: str, table: str, scopes: dict[int, str]) -> DataFrame:
    """The entries of a table in the scopes, by partition. Raises SnapshotUnusable where the snapshot is not there."""
    manifest.load(root, name)
    numbers = sorted(scopes)
    job = json.dumps([str(root.absolute()), name, table, [[number, scopes[number]] for number in numbers]])
    return session.range(0, len(numbers), 1, len(numbers)).mapInArrow(partial(read_scopes, job), SCHEMA)


def read_scopes(job: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: the scopes that the rows of the batches number."""
    root, name, table, listed = json.loads(job)
    found = manifest.load(Path(root), name)
    for batch in batches:
        for at in batch.column(0).to_pylist():
            number, scope = listed[at]
            described = manifest.load_scope(Path(root), found, scope).table(table)
            if described is None:
                continue
            with tempfile.TemporaryDirectory(prefix="stream-orchestrator-") as scratch:
                rows = snapshot.read_table(Path(root) / name / scope, described, Path(scratch) / "store")
                while part := list(islice(rows, FLUSH_ROWS)):
                    yield _batch(number, part)


def _batch(number: int, part: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([number] * len(part), pa.int32()),
            "offset": pa.array([BEFORE_ALL] * len(part), pa.int64()),
            "key": pa.array([key for key, _ in part], pa.binary()),
            "value": pa.array([value for _, value in part], pa.binary()),
        }
    )
