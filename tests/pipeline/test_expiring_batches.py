"""Batches whose tables expire. Law: where a batch was cut, and where it was committed, changes nothing: each record sees
the keys that it would see had all come in one batch, and the same is stored in the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App, Record, Table
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

TIMES = st.lists(st.integers(0, 9_000), min_size=1, max_size=20)


def answer(expire_ms: int, times: list[int], cuts: set[int], beside: bool) -> Any:
    """What each record saw, and the table in the end; a run and a commit end at each of `cuts`."""
    app = App("x", partitions=1)
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, expire=timedelta(milliseconds=expire_ms))
    seen: list[Any] = []
    sizes: list[int] = []

    @app.processor(source, table, batch=True)
    def look(records: list[Record[str, str]], t: Table[str, int]) -> None:
        sizes.append(len(records))
        for record in records:
            seen.append((record.offset, record.key in t, sorted(t)))
            if record.value:
                t[record.key] = record.offset

    if beside:  # with two steps on a topic a run counts as a whole

        @app.processor(source, app.table("other", key=str, value=int))
        def beside_it(record: Record[str, str], other: Table[str, int]) -> None:
            other[record.key] = record.offset

    stores = {"t": DictStore(), "other": DictStore()}
    process = TaskProcess(app, app.topology().subtopologies[0], 0, stores, {"in": 1})
    records = [("in", SourceRecord(n, time, b"k%d" % (n % 3), b"x" if n % 4 else b"")) for n, time in enumerate(times)]
    begin = 0
    for end in sorted({*cuts, len(records)}):
        if begin < end <= len(records):
            process.run(records[begin:end])
            stores["t"].write(process.collect().writes.get("t", {}))
            process.mark_applied()
            begin = end
    return seen, dict(stores["t"].data), sizes


@given(st.sampled_from([1, 700, 2_500, 1_000_000, 4_000_000]), TIMES, st.sets(st.integers(1, 19)), st.booleans())
def test_a_cut_changes_nothing(expire_ms: int, times: list[int], cuts: set[int], beside: bool) -> None:
    whole, left, _ = answer(expire_ms, times, set(), beside)
    cut, left_after_cuts, _ = answer(expire_ms, times, cuts, beside)
    assert cut == whole
    # What expired may be swept at another commit; what has not is the same.
    now = max(times)
    assert live(left, expire_ms, now) == live(left_after_cuts, expire_ms, now)


def live(stored: dict[bytes, bytes], expire_ms: int, now: int) -> dict[bytes, bytes]:
    return {k: v for k, v in stored.items() if int.from_bytes(v[:8], "big", signed=True) + expire_ms > now}


@pytest.mark.parametrize(("expire_ms", "batches"), [(1_000, 4), (4_000, 2), (1_000_000, 1)])
def test_a_batch_ends_where_the_time_of_its_tables_steps_on(expire_ms: int, batches: int) -> None:
    _, _, sizes = answer(expire_ms, [0, 1, 3, 5, 5], set(), False)
    assert len(sizes) == batches
    assert sum(sizes) == 5
