"""Tasks that rest between two tries, and calls of a task that overlap, in a worker: releases and stops do not wait for
them, other tasks go on, and `status` and the log say what waits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Record
from state.log.protocol import NewRecord
from tests.workers.test_record_loop import TASKS, Partition, committed, count, read, running, until

AWAY: dict[str, Any] = {"on_error": {ConnectionError: "wait"}, "backoff": 0.001}


class Client:
    """Raises for the records of the first partition while it is away."""

    def __init__(self) -> None:
        self.is_away, self.tries = True, 0

    def ask(self, record: Record[str, int]) -> None:
        if self.is_away and record.partition == 0 and record.value >= 20:
            self.tries += 1
            raise ConnectionRefusedError("nobody is there")


def calls_of(client: Client, kind: str) -> Any:
    def ask(record: Record[str, int], sums: Any, out: Any) -> None:
        if kind != "concurrent":
            count(record, sums, out)
        else:
            out.send(record.key, record.value)
        client.ask(record)

    async def ask_later(record: Record[str, int], sums: Any, out: Any) -> None:
        await asyncio.sleep(0)
        ask(record, sums, out)

    return ask if kind == "sync" else ask_later


def options_of(kind: str) -> dict[str, Any]:
    return AWAY | ({"concurrency": 4} if kind == "concurrent" else {})


def before(positions: dict[int, int]) -> Counter[int]:
    """The ids of the records before these positions; behind the last one lies what is no record."""
    return Counter(2 * n + part for part in (0, 1) for n in range(min(40, positions.get(part, 0))))


@pytest.mark.parametrize("kind", ["sync", "async", "concurrent"])
async def test_a_client_that_is_away_pauses_its_task_alone_and_says_so(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    caplog.set_level(logging.WARNING)
    async with running(tmp_path, calls_of(client, kind), records=40, keys=8, **options_of(kind)) as (worker, log, life):
        await until("the other task's end, and tries", lambda: client.tries > 5)

        async def others() -> bool:
            return (await committed(log)).get(1, 0) >= 40

        await until("the other task's end", others)
        await until("a notice", lambda: "waits: ask" in worker.notice())
        assert worker.notice().startswith(("0_0 waits: ask at in-0@", "0_0 waits: ask_later at in-0@"))
        assert worker.notice().endswith("ConnectionRefusedError: nobody is there")
        assert (await committed(log)).get(0, 0) <= 10, "no record is left out"
        client.is_away = False

        async def all_of_them() -> bool:
            positions = await committed(log)
            return min(positions.get(0, 0), positions.get(1, 0)) >= 40

        await until("all records", all_of_them)
        await until("no notice", lambda: worker.notice() == "")
        assert not life.done()
    assert await read(log, "out") == Counter(range(80))
    told = [record.getMessage() for record in caplog.records if record.name == "orchestrator.records"]
    assert len(told) == 2 and " waits: " in told[0] and "waits no more" in told[1]


@pytest.mark.parametrize("kind", ["sync", "async", "concurrent"])
async def test_a_task_that_waits_is_released_and_stopped_at_once(tmp_path: Path, kind: str) -> None:
    client = Client()
    options = options_of(kind) | {"backoff": 3_600}
    async with running(tmp_path, calls_of(client, kind), records=40, keys=8, **options) as (worker, log, life):
        await until("the wait", lambda: client.tries > 0)
        worker.runs[TASKS[0]].release()
        await until("the release", lambda: worker.runs[TASKS[0]].process is None)
        assert not life.done()
        position = (await committed(log)).get(0, 0)
        assert position <= 10 and await read(log, "out") >= Counter(range(0, 2 * position, 2))
    assert life.result() == 0
    done = await committed(log)
    assert await read(log, "out") == before(done)


@pytest.mark.parametrize("kind", ["sync", "async", "concurrent"])
async def test_a_stop_does_not_wait_for_the_next_try(tmp_path: Path, kind: str) -> None:
    client = Client()
    options = options_of(kind) | {"backoff": 3_600, "retries": 3}
    async with running(tmp_path, calls_of(client, kind), records=40, keys=8, **options) as (worker, log, life):
        await until("the wait", lambda: client.tries > 0)
        worker.stop()
        assert await life == 0
    assert client.tries < 8
    done = await committed(log)
    assert done.get(0, 0) <= 10
    assert await read(log, "out") == before(done)


async def test_calls_of_a_task_overlap_and_commits_go_on_before_the_slow_one(tmp_path: Path) -> None:
    """Records that come while a call lasts are called, too; what is complete before it is committed meanwhile."""
    under_way, most, go_on, called = Counter[int](), Counter[int](), asyncio.Event(), set[int]()

    async def ask(record: Record[str, int], sums: Any, out: Any) -> None:
        under_way[record.partition] += 1
        most[record.partition] = max(most[record.partition], under_way[record.partition])
        if record.offset == 10:
            await go_on.wait()
        await asyncio.sleep(0)
        out.send(record.key, record.value)
        called.add(record.value)
        under_way[record.partition] -= 1

    async with running(tmp_path, ask, records=40, keys=40, concurrency=4) as (_, log, life):

        async def before_it() -> bool:
            return await committed(log) == {0: 10, 1: 10}

        await until("commits before the slow calls", before_it)
        await until("only the slow calls", lambda: under_way == {0: 1, 1: 1})
        late = [NewRecord(b"late%d" % n, (1_000 + n).to_bytes(8, "big", signed=True), 50) for n in range(8)]
        await log.append({Partition("in", 0): late})
        await until("calls with what came later", lambda: called >= set(range(1_000, 1_008)))
        assert await committed(log) == {0: 10, 1: 10} and most == {0: 4, 1: 4} and not life.done()
        go_on.set()

        async def all_of_them() -> bool:
            done = await committed(log)
            return done[0] >= 49 and done[1] >= 40

        await until("all records", all_of_them)
    assert await read(log, "out") == Counter([*range(80), *range(1_000, 1_008)])
