"""A record whose call of one processor is not made: its policy decides, and the record's other processors are called as ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator import App, ProcessorFailed, Tumbling
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

RECORDS = [("plain", SourceRecord(at, at * 10, b"k%d" % at, (1).to_bytes(8, "big"))) for at in range(6)]
LOST = 3
REKEYED = "bank-by-value-repartition"
ERROR = RuntimeError("not to be called")


def app_of(form: str, policy: str | None) -> App:
    app = App("bank", partitions=1, on_error="skip" if form == "all skip" else "stop")
    plain = app.topic("plain", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    dead = app.topic("dead", key=bytes, value=bytes)
    beside = app.topic("beside", key=str, value=int)
    counts = app.table("counts", key=str, value=int, default=int)
    chosen: Any = dead if policy == "dead" else policy
    plain.rekey("by-value", key=int, by=lambda record: record.value)
    batch = form == "batch"

    if form == "at once":

        @app.processor(plain, counts, out, on_error=chosen, concurrency=4)
        async def write(record: Any, counts: Any, out: Any) -> None:
            await asyncio.sleep(0)
            counts[record.key] += 1
            out.send(record.key, record.value)

        return app

    if batch:

        @app.processor(plain, counts, out, on_error=chosen, batch=True)
        def write_all(records: Any, counts: Any, out: Any) -> None:
            for record in records:
                counts[record.key] += 1
                out.send(record.key, record.value)

    else:

        @app.processor(plain, counts, out, on_error=chosen)
        def write_one(record: Any, counts: Any, out: Any) -> None:
            counts[record.key] += 1
            out.send(record.key, record.value)

    if form == "windows":
        sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(milliseconds=10))

        @app.processor(plain, sums, beside)
        def add(record: Any, sums: Any, beside: Any) -> None:
            sums[record.key] += 1
            beside.send(record.key, record.value)

        return app

    @app.processor(plain, beside, batch=batch)
    def pass_on(given: Any, beside: Any) -> None:
        for record in given if batch else [given]:
            beside.send(record.key, record.value)

    return app


def task(app: App) -> TaskProcess:
    [part] = app.topology().subtopologies
    stores = {name: DictStore() for name in part.tables}
    counts = dict.fromkeys(("plain", "out", "dead", REKEYED, "beside"), 1)
    return TaskProcess(app, part, 0, stores, counts)


def run(process: TaskProcess, records: list[tuple[str, Any]]) -> int:
    return asyncio.run(process.run_async(records))


FORMS = ["one", "batch", "at once", "windows"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", ["skip", "dead"])
def test_the_others_are_called(form: str, policy: str) -> None:
    app = app_of(form, policy)
    process = task(app)
    assert run(process, RECORDS[:LOST]) == LOST
    [writer] = [name for name in process.answering.processors_of("plain") if name.startswith("write")]
    assert not process.answering.lose(*RECORDS[LOST], [writer], ERROR), "others read it as well"
    assert run(process, [RECORDS[LOST]]) == 1
    assert run(process, RECORDS[LOST + 1 :]) == len(RECORDS) - LOST - 1
    found = process.collect()
    all_but_one = [raw.key for _, raw in RECORDS if raw.offset != LOST]
    every = [raw.key for _, raw in RECORDS]
    assert [one.key for one in found.outputs["out", 0]] == all_but_one
    assert sorted(found.writes["counts"]) == all_but_one
    assert len(found.outputs[REKEYED, 0]) == len(every)
    if form != "at once":
        assert [one.key for one in found.outputs["beside", 0]] == every
    letters = [one.key for one in found.outputs.get(("dead", 0), [])]
    assert letters == ([b"k%d" % LOST] if policy == "dead" else [])
    assert len(found.left_out) == 1 and found.processed == {"plain": 6} and found.positions == {"plain": 6}


def test_a_record_that_all_lose_is_completed_by_that() -> None:
    app = app_of("one", "skip")
    process = task(app)
    names = process.answering.processors_of("plain")
    with pytest.raises(ProcessorFailed, match="by-value"):
        process.answering.lose(*RECORDS[0], names, ERROR)
    assert not process.has_completed and process.collect().left_out == []


def test_a_record_that_is_left_without_any_call_is_complete() -> None:
    process = task(app_of("all skip", "skip"))
    assert process.answering.lose(*RECORDS[0], process.answering.processors_of("plain"), ERROR)
    found = process.collect()
    assert len(found.left_out) == 3 and found.positions == {"plain": 1} and not found.outputs


@pytest.mark.parametrize(
    ("to", "table", "named"),
    [
        ("out", None, {"write_one"}),
        ("beside", None, {"pass_on"}),
        ("bank-counts-changelog", "counts", {"write_one"}),
        ("dead", None, {"write_one"}),
        (REKEYED, None, {"rekey by-value"}),
        ("elsewhere", None, {"write_one", "pass_on", "rekey by-value"}),
    ],
)
def test_who_may_have_written_it(to: str, table: str | None, named: set[str]) -> None:
    answering = task(app_of("one", "dead")).answering
    readers = answering.processors_of("plain")
    assert set(answering.writers_of(readers, to, table)) == named


@pytest.mark.parametrize("form", FORMS)
def test_the_one_that_is_called_is_named(form: str) -> None:
    """Before its call; a worker that ends in it knows whose it was."""
    process = task(app_of(form, "skip"))
    noted: list[str] = []
    process.answering.note = noted.append
    assert run(process, RECORDS[:1]) == 1
    assert list(dict.fromkeys(noted)) == process.answering.processors_of("plain")
    assert process.answering.under_way is None
