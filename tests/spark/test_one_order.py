"""Tasks take history and the log in the one order of their sources, whichever of the ways of ordering is taken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.spark import stage_rows
from pipeline.spark.backfill import backfill
from pipeline.values.partitioner import partition_of
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite
from tests.often import often
from tests.spark import trails
from workers.commands.consume import read_all
from workers.prepare import prepare

ROOT = Path(__file__).resolve().parent.parent.parent
PARTITIONS, FILES = 3, 2


class Given(NamedTuple):
    """A record: its label, and where its source has it."""

    label: str
    key: bytes | None
    at_ms: int
    partition: int


def drawn(choice: random.Random, topic: str, count: int, *, file: int = -1) -> list[Given]:
    """Some of them have no key, an empty key, or the time of others."""
    found = []
    for line in range(1, count + 1):
        key = choice.choice([None, b"", *(b"k%d" % number for number in range(20))])
        number = partition_of(key, PARTITIONS, keyless=line)
        found.append(Given(f"{topic} {file} {line}", key, choice.randrange(500), number))
    return found


def expected(partition: int, sources: Sequence[tuple[Sequence[Sequence[Given]], Sequence[Given]]]) -> list[str]:
    """Files in the order of time, then the log as it stands; of several sources by the times that have been reached."""
    placed = []
    for number, (files, log) in enumerate(sources):
        rows = sorted((one for file in files for one in file), key=lambda one: one.at_ms)
        reached = 0
        for seq, one in enumerate(one for one in [*rows, *log] if one.partition == partition):
            reached = max(reached, one.at_ms)
            placed.append((reached, number, seq, one.label))
    return [label for *_, label in sorted(placed)]


def write_file(path: Path, rows: Sequence[Given]) -> None:
    columns = [[one.key for one in rows], [one.label for one in rows], [one.at_ms for one in rows]]
    types = [pa.binary(), pa.string(), pa.int64()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    pq.write_table(pa.table(arrays, ["key", "value", "timestamp_ms"]), path, row_group_size=150)


ORDERS = {"spilled": (1_000, "right"), "in memory": (256 << 20, "right"), "spilled, behind its own": (1_000, "left")}


@pytest.mark.spark
@pytest.mark.parametrize("order", often(ORDERS, "in memory"))
async def test_the_order_of_a_task(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """`behind`: the topic whose log has something: beside the history of the other one, or after its own."""
    memory_bytes, behind = ORDERS[order]
    monkeypatch.chdir(ROOT)
    ways: list[bool] = []
    original = stage_rows.StageRows._is_packed
    monkeypatch.setattr(stage_rows.StageRows, "_is_packed", lambda self: ways.append(original(self)) or ways[-1])
    choice = random.Random(7)
    files = [drawn(choice, "left", 400, file=number) for number in range(FILES)]
    for number, rows in enumerate(files):
        write_file(tmp_path / f"{number}.parquet", rows)
    log_rows = drawn(choice, behind, 300)
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, trails.app)
    batch: dict[Partition, list[NewRecord]] = {}
    for one in log_rows:
        batch.setdefault(Partition(behind, one.partition), []).append(NewRecord(one.key, one.label.encode(), one.at_ms))
    await log.append(batch)
    await backfill(
        "tests.spark.trails:app",
        f"sqlite:{tmp_path / 'log.db'}",
        tmp_path / "snapshots [of] {2026}",  # where Spark would take patterns
        history={"left": [str(tmp_path / f"{number}.parquet") for number in range(FILES)]},
        memory_bytes=memory_bytes,
        say=lambda text: None,
        session=spark,
    )
    found: dict[int, list[str]] = {}
    for where, record in await read_all(log, "trail"):
        found.setdefault(where.number, []).append((record.value or b"").decode())
    sources = [(files, log_rows if behind == "left" else []), ([], log_rows if behind == "right" else [])]
    for number in range(PARTITIONS):
        assert found[number] == expected(number, sources), number
    assert ways == [behind == "right"]
    await log.close()
