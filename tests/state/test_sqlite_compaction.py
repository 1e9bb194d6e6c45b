"""The compaction of a changelog in a SQLite log: any cuts of it give one table, in bounded memory and short transactions."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.log import compaction, sqlite_compaction
from state.log.batches import decode
from state.log.protocol import NewRecord, Partition, StoredRecord, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite

T0 = Partition("t", 0)
TOMBSTONES_MS = 8_000
Writes = list[tuple[int, bytes | None]]
WRITES: st.SearchStrategy[Writes] = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.binary(max_size=2)), min_size=1, max_size=6
)


async def made(path: Path) -> SqliteLog:
    log = await open_sqlite(path, create=True, delete_retention_ms=TOMBSTONES_MS)
    await log.create_topic(TopicSpec("t", 1, "changelog"))
    return log


async def append(log: SqliteLog, writes: Sequence[tuple[int, bytes | None]]) -> None:
    await log.append({T0: [NewRecord(b"k%d" % key, value, 0) for key, value in writes]})


async def read(log: SqliteLog) -> list[StoredRecord]:
    reader = log.reader()
    reader.add(T0, 0)
    return [record for got in await reader.poll(max_bytes_per_partition=1 << 30) for record in decode(got.data, 0)]


def present(values: Mapping[Any, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in values.items() if value is not None}


class Passing:
    """A clock of upkeep that has come further with each compaction."""

    def __init__(self, begin_ms: int) -> None:
        self.at_ms = begin_ms

    def now_ms(self) -> int:
        return self.at_ms

    def is_sure(self) -> bool:
        return True


@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(WRITES, st.none() | WRITES, st.integers(1, 20)), min_size=1, max_size=8))
def test_any_turns_of_writes_and_compactions_give_one_table(turns: list[tuple[Writes, Writes | None, int]]) -> None:
    """Also what is written between the survey and the removal, which is merged with what was surveyed, and surveys that end early."""
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(sqlite_compaction, "KEYS_AT_ONCE", 3)
        asyncio.run(_one_table(Path(folder, "log.db"), turns, patched))


async def _one_table(path: Path, turns: list[tuple[Writes, Writes | None, int]], patched: pytest.MonkeyPatch) -> None:
    log = await made(path)
    clock = Passing(1_000_000)
    log._time = clock  # type: ignore[assignment]
    survey = sqlite_compaction.Compaction._survey
    table: dict[bytes, bytes | None] = {}

    async def put(writes: Writes) -> None:
        await append(log, writes)
        table.update((b"k%d" % key, value) for key, value in writes)

    for writes, meanwhile, seconds in turns:
        await put(writes)
        between = [meanwhile] if meanwhile else []

        async def and_then(*given: Any, between: list[Writes] = between) -> Any:
            found = await survey(*given)
            if between:
                await put(between.pop())
            return found

        patched.setattr(sqlite_compaction.Compaction, "_survey", and_then)
        clock.at_ms += seconds * 1_000
        done = await log.compact("t")
        found = await read(log)
        assert present({r.key: r.value for r in found}) == present(table)
        assert [r.offset for r in found] == sorted(r.offset for r in found)
        assert done.kept == len(found)
        if not meanwhile:
            assert len({r.key for r in found}) == len(found)
    await log.close()


async def test_what_a_pass_went_through_is_not_surveyed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await made(tmp_path / "log.db")
    surveyed: list[int] = []
    whole = compaction.survey

    def survey(rows: Any) -> dict[bytes, int]:
        found = whole(rows)
        surveyed.append(len(found))
        return found

    monkeypatch.setattr(compaction, "survey", survey)
    await append(log, [(key, b"1") for key in range(1_500)])
    assert (await log.compact("t")).removed == 0
    assert sum(surveyed) == 1_500
    surveyed.clear()
    await append(log, [(7, b"2")])
    assert (await log.compact("t")) == (1, 1_500)
    assert sum(surveyed) <= 501  # of the last batch, which the pass may have ended in, and the new one
    await log.close()


async def test_a_compaction_is_many_small_transactions(tmp_path: Path) -> None:
    """A writer that comes in between does not wait for all of it, nor does the pass go on for as long as it writes."""
    log = await made(tmp_path / "log.db")
    for turn in range(100):
        await append(log, [(turn % 2, bytes(50_000))])
    compacting = asyncio.create_task(log.compact("t"))
    between = 0
    while not compacting.done():
        await append(log, [(9, b"meanwhile")])
        between += 1
    assert (await compacting).removed >= 98 and between >= 5
    await log.close()
