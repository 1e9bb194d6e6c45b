"""What executors write of a backfill is what the driver would write to a log with one writer, partition by partition."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import OrchestratorError
from pipeline.spark import spreading
from pipeline.spark.final_records import Part, final_values, outputs
from pipeline.spark.inputs import Computed
from pipeline.spark.runs import Spent
from pipeline.spark.session import SparkFailed
from pipeline.spark.source import Source
from pipeline.spark.spreading import Portion, portions, write_portions
from pipeline.spark.stage import compute
from state.errors import LogUnusable
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, Spread
from tests.spark import tallies
from tests.spark.refusing import Refusing
from tests.spark.test_attempts import job, some_rows
from workers.prepare import Prepared, prepare


@dataclass(frozen=True)
class ToFiles:
    """A ticket for a folder: what each partition gets."""

    folder: Path

    async def write(self, partition: Partition, parts: Callable[[], Iterable[Sequence[NewRecord]]]) -> int:
        records = [record for part in parts() for record in part]
        (self.folder / str(partition)).write_bytes(msgspec.msgpack.encode(records))
        return len(records)


def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Computed, Prepared]:
    """Of two tasks that send to each other's partitions."""
    monkeypatch.setattr(Source, "load", lambda self: tallies.app)
    made = Computed(tmp_path / "work")
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    made.work.mkdir()
    for number, count in enumerate((40, 25)):
        facts = compute(job(made.work, attempts), number, 1, some_rows(count), Spent())
        made.tasks[facts.task] = facts
    return made, asyncio.run(prepare(MemoryLog(), tallies.app))


def by_partition(parts: Iterable[Part]) -> dict[Partition, list[NewRecord]]:
    found: dict[Partition, list[NewRecord]] = {}
    for part in parts:
        for partition, records in part.items():
            found.setdefault(partition, []).extend(records)
    return found


def test_every_partition_gets_the_same_from_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, prepared = computed(tmp_path, monkeypatch)
    listed = portions(made, prepared, tables=True)
    expected = by_partition([*final_values(made, prepared), *outputs(made)])
    assert [one.partition.topic for one in listed] == ["tallies-sums-changelog"] * 2 + ["seen"] * 2, "outputs last"
    ticket, text = pickle.dumps(ToFiles(tmp_path)), msgspec.json.encode(listed)
    counts = list(write_portions(ticket, text, range(len(listed))))
    assert counts == [(number, one.count) for number, one in enumerate(listed)]
    written = {
        one.partition: msgspec.msgpack.decode((tmp_path / str(one.partition)).read_bytes(), type=list[NewRecord])
        for one in listed
    }
    assert written == expected and sum(map(len, expected.values())) == 130
    assert {one.partition.topic for one in portions(made, prepared, tables=False)} == {"seen"}


def test_what_executors_did_not_write_is_noticed() -> None:
    listed = [Portion("seen", 0, [], 5), Portion("seen", 1, [], 7)]
    spreading.check_counts(listed, {0: 5, 1: 7})
    for counts in ({0: 5, 1: 6}, {0: 5}):
        with pytest.raises(OrchestratorError, match=r"of 7 records of seen-1; nothing is committed"):
            spreading.check_counts(listed, counts)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (LogUnusable("the seed is over"), LogUnusable, r"^the seed is over$"),
        (ValueError("no codec"), SparkFailed, r"^a Spark job failed: ValueError: no codec; its log is \S+$"),
    ],
)
def test_what_an_executor_raises_is_one_line(spark: Any, error: Exception, expected: type, text: str) -> None:
    found = spreading.spread(spark, [Portion("seen", 0, [], 5)])
    assert isinstance(found, Spread)
    with pytest.raises(expected, match=text):
        asyncio.run(found.write(Refusing(error)))
