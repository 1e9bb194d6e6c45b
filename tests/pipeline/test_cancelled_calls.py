"""An async call that awaits what was cancelled has failed, as with any other error; one that is cancelled from outside is undone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator import App, ProcessorFailed, Record, Sink, Table
from orchestrator.testing import Driver
from pipeline.errors import CallCancelled
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "without a wait": {},
    "timeout": {"timeout": 60},
    "concurrent": {"concurrency": 3},
    "batch": {"batch": True},
    "two": {},  # processors of one topic: not the plain way
}


async def awaits_what_is_cancelled(*, at_once: bool) -> None:
    client = asyncio.get_running_loop().create_future()
    if at_once:
        client.cancel()
    else:
        asyncio.get_running_loop().call_soon(client.cancel)
    await client


def app_of(shape: str, **options: Any) -> App:
    app = App("x", partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)
    app.topic("letters", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int)

    async def ask(record: Record[str, int], sums: Table[str, int], out: Sink[str, int]) -> None:
        sums[record.key] += 1
        out.send(record.key, record.value)
        if record.value == 3:
            await awaits_what_is_cancelled(at_once=shape == "without a wait")

    async def ask_all(records: Any, sums: Table[str, int], out: Sink[str, int]) -> None:
        for record in records:
            await ask(record, sums, out)

    async def look(record: Record[str, int]) -> None:
        """Reads the same topic."""

    app.processor(source, sums, out, **SHAPES[shape], **options)(ask_all if shape == "batch" else ask)
    if shape == "two":
        app.processor(source)(look)
    return app


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_left_to_on_error(shape: str) -> None:
    app = app_of(shape, on_error="letters")
    with Driver(app) as driver:
        for n in range(6):
            driver.send(app.topics["in"], f"k{n}", n)
        assert driver.items(app.topics["out"]) == [(f"k{n}", n) for n in range(6) if n != 3]
        assert driver.table(app.tables["sums"]) == {f"k{n}": 1 for n in range(6) if n != 3}
        [letter] = driver.records(app.topics["letters"])
        assert letter.value == 3
        assert dict(letter.headers)["error-type"] == b"CallCancelled"
        assert b"awaits_what_is_cancelled" in dict(letter.headers)["error-where"], "where it waited"


@pytest.mark.parametrize("shape", SHAPES)
def test_where_it_stops_the_record_and_the_users_frames_are_named(shape: str) -> None:
    app = app_of(shape)
    with Driver(app) as driver:
        driver.send(app.topics["in"], "k", 2)
        with pytest.raises(ProcessorFailed, match=r"in-0@1.*CallCancelled: what ask.* awaited was cancelled") as caught:
            driver.send(app.topics["in"], "k", 3)
        assert "awaits_what_is_cancelled" in caught.value.frames
        assert isinstance(caught.value.__cause__, CallCancelled)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_that_is_cancelled_from_outside_is_undone(shape: str) -> None:
    begun = asyncio.Event()

    async def ask(record: Any, sums: Table[str, int]) -> None:
        sums["k"] += 1
        begun.set()
        await asyncio.Event().wait()

    async def look(record: Record[str, int]) -> None:
        """Reads the same topic."""

    app = App("x", partitions=1)
    source, sums = app.topic("in", key=str, value=int), app.table("sums", key=str, value=int, default=int)
    app.topic("letters", key=str, value=int)
    app.processor(source, sums, **SHAPES[shape], on_error="letters")(ask)
    if shape == "two":
        app.processor(source)(look)
    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": DictStore()}, {"letters": 1})

    async def life() -> None:
        run = asyncio.ensure_future(process.run_async([("in", SourceRecord(0, 0, b"k", (1).to_bytes(8, "big")))]))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(life())
    changes = process.collect()
    assert not changes.outputs and not changes.positions
