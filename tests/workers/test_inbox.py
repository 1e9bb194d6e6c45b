"""What waits for a task that takes columns. Laws: it is asked as a Merger is, with the same answers; the bytes of a fetch
become arrays, and records only where something asks for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App
from pipeline.columns.raw import RawColumns
from pipeline.merge import Merger
from pipeline.pieces import Pieces
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from state.errors import LogDamaged
from state.log import batches
from state.log.protocol import Fetched, NewRecord, Partition
from workers.tasks.inbox import inbox, take_in


def process(*, columns: bool, **options: Any) -> tuple[TaskProcess, Any]:
    app = App("x", partitions=1)
    source, table = app.topic("in", key=str, value=bytes, **options), app.table("t", key=str, value=int)
    app.processor(source, table, columns=columns, batch=not columns)(lambda batch, t: None)
    return TaskProcess(app, app.topology().subtopologies[0], 0, {"t": DictStore()}, {"in": 1}), source.event_time


def fetched(data: bytes, count: int, position: int = 0) -> Fetched:
    return Fetched(Partition("in", 0), position, data, position + count)


RECORDS = [NewRecord(b"k%d" % n, b"v" * n, 100 + n, (("h", b"x"),) if n % 3 else ()) for n in range(10)]


def test_a_fetch_becomes_columns_and_records_are_made_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    task, event_time = process(columns=True)
    waiting = inbox(task)
    data = batches.encode(RECORDS, 0)
    with monkeypatch.context() as without:
        without.setattr("state.log.columns.decode", None)
        without.setattr("workers.tasks.inbox.decode", None)
        take_in(waiting, task, event_time, fetched(data, 10))
        taken = waiting.take(4)
        assert isinstance(taken, RawColumns) and len(taken) == 4
        task.run(taken)
        assert task.collect().positions == {"in": 4}
    assert [record for _, record in waiting.take(9)] == batches.decode(data, 4)


def test_what_is_compressed_or_has_a_time_of_its_own_is_read_record_by_record() -> None:
    task, event_time = process(columns=True)
    waiting = inbox(task)
    (batch,) = batches.build(RECORDS * 20, codec=1)
    take_in(waiting, task, event_time, fetched(batch.data, 200))
    assert [record for _, record in waiting.take(200)] == batches.decode(batch.data, 0)
    task, event_time = process(columns=True, timestamp=lambda value: 5)
    assert not task.takes_columns and type(inbox(task)) is Merger
    take_in(timed := inbox(task), task, event_time, fetched(batches.encode(RECORDS, 0), 10))
    assert {record.timestamp_ms for _, record in timed.take(10)} == {5}


@pytest.mark.parametrize("columns", [True, False])
def test_damage_leaves_nothing_waiting(columns: bool) -> None:
    task, event_time = process(columns=columns)
    data = bytearray(batches.encode(RECORDS, 0))
    data[-1] ^= 1
    with pytest.raises(LogDamaged):
        take_in(waiting := inbox(task), task, event_time, fetched(bytes(data), 10))
    assert len(waiting) == 0 and waiting.read_to("in", 0) is None


STEPS = st.lists(st.tuples(st.sampled_from(["add", "take", "gap"]), st.integers(0, 6), st.integers(0, 6)), max_size=14)


@settings(deadline=None)
@given(STEPS)
def test_it_answers_as_a_merger(steps: list[tuple[str, int, int]]) -> None:
    merger, pieces, at = Merger(), Pieces(), 0
    for verb, count, back in steps:
        if verb == "take":
            # A take gives the records of one piece; the merger is asked for as many.
            found = pieces.take(count)
            expected = merger.take(len(found))
            assert list(found) == list(expected)
            assert found or not count or not len(merger)
            pieces.put_back(
                0, found[len(found) - min(back, len(found)) :] if back % 2 else list(found)[-back:] if back else []
            )
            merger.put_back(0, expected[-min(back, len(expected)) :] if back and expected else [])
        else:
            made = [] if verb == "gap" else [SourceRecord(n, n, b"k", b"v") for n in range(at, at + count)]
            at += count + 1
            for one in (merger, pieces):
                one.add("in", 0, made, at, 10 * count)
        assert len(pieces) == len(merger) and pieces.gaps() == merger.gaps()
        assert pieces.has_head("in", 0) == merger.has_head("in", 0)
        assert pieces.read_to("in", 0) == merger.read_to("in", 0)
        assert pieces.size_bytes("in", 0) == merger.size_bytes("in", 0)
    for waiting in (merger, pieces):
        waiting.drop("in", 0)
        assert (len(waiting), waiting.gaps(), waiting.read_to("in", 0)) == (0, {}, None)
