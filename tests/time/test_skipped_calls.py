"""Calls of what comes due that an operator has skipped: exactly these, in any replay of their task, as long as they are not committed."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import App, ProcessorFailed
from pipeline.errors import DueCallId
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

app = App("skips", partitions=1)
beats = app.topic("beats", key=str, value=int)
out = app.topic("out", key=str, value=str)
silent = app.timers("silent", key=str)
loud = app.timers("loud", key=str)
sums = app.table("sums", key=str, value=int, default=int)
names = app.table("names", key=str, value=str)
FAILING: set[str] = set()


def said(what: str, key: str, out: Any) -> None:
    out.send(key, what)
    if f"{what} {key}" in FAILING:
        raise ValueError(what)


@app.processor(beats, silent, names)
def beat(beat: Any, silent: Any, names: Any) -> None:
    silent[beat.key] = beat.value
    names[beat.key] = beat.key


@app.when_due(silent, out, sums, loud)
def first(due: Any, out: Any, sums: Any, loud: Any) -> None:
    sums[due.key] += 1
    loud[due.key] = due.timestamp_ms
    said("first", due.key, out)


@app.when_due(silent, out, sums)
def second(due: Any, out: Any, sums: Any) -> None:
    sums[due.key] += 1
    said("second", due.key, out)


@app.when_due(loud, out)
def after(due: Any, out: Any) -> None:
    said("after", due.key, out)


@app.table_join(sums, names, out)
def joined(total: Any, name: Any, out: Any) -> None:
    said(f"joined {total.value}", name.value, out)


RECORDS = [(0, "a", 5), (0, "b", 5), (9, "c", 7), (20, "d", 99)]  # c's timer is in the past


class Task:
    """A task, and one that begins anew on what it has committed."""

    def __init__(self, calls: list[DueCallId]) -> None:
        self.stores = {name: DictStore() for name in app.tables}
        self.position = 0
        self.sent: list[str] = []
        self.begin(calls)

    def begin(self, calls: list[DueCallId]) -> None:
        self.process = TaskProcess(app, app.topology().subtopologies[0], 0, self.stores, {"out": 1})
        assert self.process.due_calls is not None
        self.due_calls = self.process.due_calls
        for call in calls:
            self.due_calls.leave_out(call)

    def run(self) -> DueCallId | None:
        """Until the end, or a call that stops it, which is returned."""
        rows = [
            ("beats", SourceRecord(n, at, key.encode(), value.to_bytes(8, "big")))
            for n, (at, key, value) in enumerate(RECORDS)
            if n >= self.position
        ]
        try:
            self.process.run(rows)
        except ProcessorFailed as error:
            assert error.due is not None and error.offset == -1
            return error.due
        finally:
            self.commit()
        return None

    def commit(self) -> None:
        changes = self.process.collect()
        self.sent += [
            f"{record.value.decode()} {record.key.decode()}" for r in changes.outputs.values() for record in r
        ]
        for table, writes in changes.writes.items():
            self.stores[table].write(writes)
        self.position = changes.positions.get("beats", self.position)
        self.process.mark_applied()


def all_sent() -> list[str]:
    FAILING.clear()
    task = Task([])
    assert task.run() is None
    return task.sent


CALLS = [f"{what} {key}" for key in "abc" for what in ("first", "second", "after", "joined 1", "joined 2")]


@pytest.mark.parametrize("call", CALLS)
def test_exactly_the_call_that_stopped_is_left_out(call: str) -> None:
    whole = all_sent()
    assert sorted(CALLS) == sorted(whole), "the app makes other calls than this test thinks"
    FAILING.add(call)
    task = Task([])
    stopped = task.run()
    assert stopped is not None and not task.due_calls.has_committed(stopped)
    again = task.run()
    assert again == stopped, "a replay knows the call by another name"
    task.begin([stopped])
    FAILING.add(call)
    assert task.run() is None
    without = [one for one in whole if one != call]
    if call.startswith("first"):  # what it would have done is not done
        key = call[-1]
        without = [one.replace("joined 2", "joined 1") if one[-1] == key else one for one in without]
        without.remove(f"joined 1 {key}")
        without.remove(f"after {key}")
    if call.startswith("second"):
        without.remove(f"joined 2 {call[-1]}")
    assert sorted(task.sent) == sorted(without)
    if stopped.record is None:
        assert task.due_calls.has_committed(stopped)
