"""A call that awaits what was cancelled, or waits for it in another thread, has failed, as with any other error; an async one that
is cancelled from outside is undone."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, ProcessorFailed, Record, Sink, Table, Tumbling
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


@pytest.mark.parametrize("becomes", [None, ConnectionError, SystemExit, "an answer"], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_that_is_cancelled_from_outside_is_undone(shape: str, becomes: Any) -> None:
    """Also where the function, or a client that it awaits, makes something else of the cancellation: another error was left to
    `on_error`, at every stop in order, and an answer counted."""
    begun = asyncio.Event()

    async def ask(record: Any, sums: Table[str, int]) -> None:
        sums["k"] += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if becomes is None:
                raise
            if becomes != "an answer":
                raise becomes from None

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
        process.on_error.are_undone = True
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(life())
    changes = process.collect()
    assert not changes.outputs and not changes.positions


# ---- functions that are no coroutines: no cancellation from outside can come out of one


def waits_for_what_is_cancelled(value: int) -> int:
    """In another thread, where it is 3."""

    async def call() -> None:
        await awaits_what_is_cancelled(at_once=True)

    if value == 3:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, call()).result()
    return value


class Threads:
    """An app whose function, of the shape that is asked for, waits in a thread for what is cancelled where a value is 3."""

    def __init__(self, shape: str, **options: Any) -> None:
        self.app = App("x", partitions=1)
        self.source, self.other, self.out, self.letters = (
            self.app.topic(name, key=str, value=int) for name in ("in", "other", "out", "letters")
        )
        self._options = options
        getattr(self, f"_{shape}")()

    def one(self, record: Any, out: Any) -> None:
        out.send(record.key, waits_for_what_is_cancelled(record.value))

    def pair(self, left: Any, right: Any, out: Any) -> None:
        self.one(left, out)

    def _plain(self) -> None:
        self.app.processor(self.source, self.out, **self._options)(lambda record, out: self.one(record, out))

    def _batch(self) -> None:
        def each(records: Any, out: Sink[str, int]) -> None:
            for record in records:
                self.one(record, out)

        self.app.processor(self.source, self.out, batch=True, **self._options)(each)

    def _columns(self) -> None:
        def each(batch: Any, out: Any) -> None:
            for value in batch.table["value"].to_pylist():
                waits_for_what_is_cancelled(value)
            out.send(batch.table["key"], batch.table["value"])

        self.app.processor(self.source, self.out, columns=True, **self._options)(each)

    def _beside_async(self) -> None:
        async def look(record: Record[str, int]) -> None:
            """Reads the same topic."""

        self._plain()
        self.app.processor(self.source)(look)

    def _rekey(self) -> None:
        def key(record: Record[str, int]) -> str:
            waits_for_what_is_cancelled(record.value)
            return record.key

        keyed = self.source.rekey("keyed", key=str, by=key, **self._options)
        self.app.processor(keyed, self.out)(lambda record, out: out.send(record.key, record.value))

    def _join(self) -> None:
        within = timedelta(milliseconds=1)
        self.app.join(self.source, self.other, self.out, within=within, kind="left", **self._options)(self.pair)

    def _table_join(self) -> None:
        self.app.table_join(self.source, self.other, self.out, kind="left", **self._options)(self.pair)

    def _foreign_key(self) -> None:
        def key(value: int) -> str:
            return f"r{waits_for_what_is_cancelled(value)}"

        self.app.foreign_key_join(self.source, self.other, self.out, kind="left", key=key, **self._options)(
            lambda left, right, out: out.send(left.key, left.value)
        )

    def _window(self) -> None:
        table = self.app.table("t", key=str, value=int, default=int, window=Tumbling(timedelta(seconds=1)))
        self.app.processor(self.source, table, self.out, **self._options)(lambda record, t, out: self.one(record, out))

    def _when_closed(self) -> None:
        table = self.app.table("t", key=str, value=int, default=int, window=Tumbling(timedelta(milliseconds=1)))

        @self.app.processor(self.source, table)
        def note(record: Record[str, int], t: Any) -> None:
            t[record.key] = record.value

        self.app.when_closed(table, self.out, **self._options)(self.one)


THREADS = [name[1:] for name in vars(Threads) if name.startswith("_") and not name.startswith("__")]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("shape", THREADS)
def test_a_call_that_waits_in_a_thread_for_what_is_cancelled_is_left_to_on_error(shape: str, together: bool) -> None:
    """A worker took it for its own end: the fleet ended with 0, without a line, at each start again."""
    one = Threads(shape, on_error={Exception: "letters"})
    with Driver(one.app) as driver:
        with driver.together() if together else nullcontext():
            for n in range(6):
                driver.send(one.source, f"k{n}", n, timestamp_ms=n)
        driver.advance(100)
        assert driver.items(one.out) == [(f"k{n}", n) for n in range(6) if n != 3]
        [letter] = driver.records(one.letters)
        headers = dict(letter.headers)
        assert (letter.key, headers["error-type"]) == ("k3", b"CallCancelled")
        assert b"awaits_what_is_cancelled" in headers["error-where"], "what was cancelled"


@pytest.mark.parametrize("shape", THREADS)
def test_one_that_waits_in_a_thread_and_stops_says_what_to_do(shape: str) -> None:
    one = Threads(shape)
    with (
        Driver(one.app) as driver,
        pytest.raises(ProcessorFailed, match=r"waited for was cancelled.*catch asyncio\.CancelledError"),
    ):
        driver.send(one.source, "k", 3, timestamp_ms=0)
        driver.advance(100)
