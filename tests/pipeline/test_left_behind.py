"""What a call has begun and left behind writes nothing in a later one, whoever waits there; what a call begins and waits for is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Hopping, PipelineError, Record, Session, Sink, Table, Tumbling
from orchestrator.testing import Driver

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "timeout": {"timeout": 60},
    "concurrent": {"concurrency": 2},
    "batch": {"batch": True},
    "two": {},  # processors of one topic: not the plain way
}
USES: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda sums, out: sums.__setitem__("k", 100),
    "add": lambda sums, out: sums.__setitem__("k", sums["k"] + 100),
    "read": lambda sums, out: sums["k"],
    "is in": lambda sums, out: "k" in sums,
    "delete": lambda sums, out: sums.pop("k"),
    "send": lambda sums, out: out.send("k", 100),
}
Call = Callable[[Record[str, int], Any, Any], Awaitable[None]]


def app_of(shape: str, call: Call) -> App:
    app = App("x", partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int)

    async def one(record: Record[str, int], sums: Table[str, int], out: Sink[str, int]) -> None:
        await call(record, sums, out)

    async def all_of(records: Any, sums: Table[str, int], out: Sink[str, int]) -> None:
        for record in records:
            await call(record, sums, out)

    async def look(record: Record[str, int]) -> None:
        """Reads the same topic."""

    app.processor(source, sums, out, **SHAPES[shape])(all_of if shape == "batch" else one)
    if shape == "two":
        app.processor(source)(look)
    return app


class Left:
    """A task that the first call leaves behind, and that goes on when a later one waits for it."""

    def __init__(self, use: Callable[[Any, Any], Any]) -> None:
        self._use = use
        self._go = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.errors: list[str] = []

    def leave(self, sums: Any, out: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(sums, out))

    async def _work(self, sums: Any, out: Any) -> None:
        await self._go.wait()
        try:
            self._use(sums, out)
        except PipelineError as error:
            self.errors.append(str(error))

    async def goes_on(self) -> None:
        assert self._task is not None
        self._go.set()
        await asyncio.wait([self._task], timeout=10)


def says(use: str) -> list[str]:
    what = "sink 'out'" if use == "send" else "table 'sums'"
    return [f"{what} was used after the call it was given to had ended"]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("shape", SHAPES)
async def test_it_gets_an_error_while_a_later_call_waits(shape: str, use: str) -> None:
    left = Left(USES[use])

    async def call(record: Record[str, int], sums: Any, out: Any) -> None:
        sums[record.key] += record.value
        out.send(record.key, record.value)
        if record.value == 1:
            left.leave(sums, out)
        elif record.value == 2:
            await left.goes_on()

    app = app_of(shape, call)
    async with Driver(app) as driver:
        for number in (1, 2, 3):
            await driver.send(app.topics["in"], "k", number)
        assert left.errors == says(use)
        assert driver.table(app.tables["sums"]) == {"k": 6}
        assert driver.items(app.topics["out"]) == [("k", 1), ("k", 2), ("k", 3)]


WINDOWS: dict[str, Any] = {
    "tumbling": Tumbling(seconds=60),
    "hopping": Hopping(seconds=60, every=timedelta(seconds=30)),
    "session": Session(gap=timedelta(seconds=60), merge=lambda one, other: one + other),
}


@pytest.mark.parametrize("window", WINDOWS)
async def test_windows_of_a_call_that_waits_are_its_own(window: str) -> None:
    """It sets and reads its own, before and behind its wait, and what another has left gets an error."""
    app = App("x", partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=WINDOWS[window])
    left = Left(lambda sums, out: (next(iter(sums)) if window == "hopping" else sums).__setitem__("k", 100))

    def add(sums: Any, key: str, number: int) -> int:
        for one in sums if window == "hopping" else (sums,):
            one[key] += number
        return int(next(iter(sums))[key] if window == "hopping" else sums[key])

    @app.processor(source, sums, out)
    async def call(record: Record[str, int], sums: Any, out: Sink[str, int]) -> None:
        add(sums, record.key, record.value)
        if record.value == 1:
            left.leave(sums, out)
        elif record.value == 2:
            await left.goes_on()
        await asyncio.sleep(0)
        out.send(record.key, add(sums, record.key, 10))

    async with Driver(app) as driver:
        for number in (1, 2, 3):
            await driver.send(source, "k", number, timestamp_ms=70_000)
        assert left.errors == says("set")
        assert driver.items(out) == [("k", 11), ("k", 23), ("k", 36)]


@pytest.mark.parametrize("use", ["set", "send"])
async def test_so_does_what_a_sync_call_has_left(use: str) -> None:
    left = Left(USES[use])
    app = App("x", partitions=1)
    first, then = app.topic("first", key=str, value=int), app.topic("then", key=str, value=int)
    out, sums = app.topic("out", key=str, value=int), app.table("sums", key=str, value=int, default=int)

    @app.processor(first, sums, out)
    def leave(record: Record[str, int], sums: Table[str, int], out: Sink[str, int]) -> None:
        sums[record.key] += 1
        left.leave(sums, out)

    @app.processor(then, sums, out)
    async def wait(record: Record[str, int], sums: Table[str, int], out: Sink[str, int]) -> None:
        await left.goes_on()
        sums[record.key] += 1

    async with Driver(app) as driver:
        await driver.send(first, "k", 1)
        await driver.send(then, "k", 2)
        assert left.errors == says(use)
        assert (driver.table(sums), driver.items(out)) == ({"k": 2}, [])


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_a_call_begins_and_waits_for_is_its_own(shape: str) -> None:
    async def call(record: Record[str, int], sums: Any, out: Any) -> None:
        async def one() -> None:
            await asyncio.sleep(0)
            sums["k"] += 1

        def other() -> None:
            sums["k"] += 1

        await asyncio.gather(one(), one())
        await asyncio.wait_for(one(), 10)
        await asyncio.to_thread(other)
        await asyncio.get_running_loop().run_in_executor(None, other)  # which has no context
        out.send("k", sums["k"])

    app = app_of(shape, call)
    async with Driver(app) as driver:
        for number in (1, 2):
            await driver.send(app.topics["in"], "k", number)
        assert driver.items(app.topics["out"]) == [("k", 5), ("k", 10)]
