"""A partition whose bytes cannot be read costs the task that reads it, and is tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator import App
from pipeline.errors import DecodingFailed
from state.errors import LogDamaged
from state.log.protocol import Fetched, NewRecord, Partition
from tests.workers.test_record_loop import HeldLog, count, judge, running, until
from workers.worker.unreadable import AGAIN_S, Unreadable

PARTITION = Partition("in", 0)


def test_a_read_is_made_again_every_second_until_it_succeeds() -> None:
    now = [0.0]
    held = Unreadable(lambda: now[0])
    held.hold(PARTITION, 7, LogDamaged("the checksum does not match"))
    assert held.due() == [] and held.notices() == ["in-0 cannot be read at 7: the checksum does not match"]
    now[0] += AGAIN_S
    assert held.due() == [(PARTITION, 7)]
    held.hold(PARTITION, 7, LogDamaged("the checksum does not match"))
    now[0] += AGAIN_S
    assert held.due() == [(PARTITION, 7)], "it failed again"
    now[0] += AGAIN_S
    assert held.due() == [] and held.notices() == [], "a second without a failure"


class RottenLog(HeldLog):
    """One partition's bytes are damaged while `rotten`."""

    rotten = True

    def fetch(self, partition: Partition, position: int, max_bytes: int, epoch: int = -1) -> Fetched | None:
        found = super().fetch(partition, position, max_bytes, epoch)
        if found is None or partition != PARTITION or not self.rotten or len(found.data) < 100:
            return found
        return found._replace(data=found.data[:90] + bytes([found.data[90] ^ 1]) + found.data[91:])


async def test_the_other_task_goes_on_and_status_says_why_this_one_does_not(tmp_path: Path) -> None:
    log = RottenLog()
    async with running(tmp_path, count, records=50, log=log) as (worker, _, life):

        async def other() -> bool:
            return (await log.positions("x", [Partition("in", 1)])).get(Partition("in", 1), 0) >= 50

        await until("the other task's records", other)
        await until("a word", lambda: "in-0 cannot be read at 0" in worker.notice())
        assert not life.done()
        log.rotten = False

        async def both() -> bool:
            return (await log.positions("x", [PARTITION])).get(PARTITION, 0) >= 50

        await until("this task's records", both)
    assert await judge(log) == {0: 50, 1: 50}


async def test_a_global_table_is_read_again_and_its_worker_goes_on(tmp_path: Path) -> None:
    log, app, seen = RottenLog(), App("x", partitions=2), list[int]()
    rates = app.global_table(app.topic("in", key=str, value=bytes, partitions=2), alias="rates")
    orders = app.topic("orders", key=str, value=str, partitions=2)
    app.processor(orders, rates)(lambda order, rates: seen.append(len(rates)))
    async with running(tmp_path, count, records=50, keys=50, log=log, app=app) as (worker, _, life):
        await log.append({Partition("orders", 0): [NewRecord(b"ann", b"tea", 1)]})
        await until("a word", lambda: "in-0 cannot be read at 0" in worker.notice() or life.done())
        assert not life.done() and not seen, "a task began before the table was whole"
        log.rotten = False
        await until("the order", lambda: bool(seen))
        await until("no word", lambda: not worker.notice())
    assert seen == [50]


@pytest.mark.parametrize(("on_error", "on_halt"), [("skip", "exit"), ("stop", "exit"), ("stop", "continue")])
async def test_a_record_that_cannot_be_read_is_not_in_a_global_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on_error: str, on_halt: str
) -> None:
    """It is left out with a line, or its reader stops: with the worker, or at what it knew before."""
    log, app, seen = HeldLog(), App("x", partitions=2), list[dict[str, int]]()
    rates = app.global_table(app.topic("rates", key=str, value=int, partitions=2))
    orders = app.topic("in", key=str, value=int, partitions=2)
    app.processor(orders, rates, on_error=on_error)(lambda order, rates: seen.append(dict(rates)))
    good = {Partition("rates", 0): [NewRecord(b"usd", (1).to_bytes(8, "big"), 1)]}
    bad = {Partition("rates", 0): [NewRecord(b"usd", b"bad", 2), NewRecord(b"eur", (2).to_bytes(8, "big"), 3)]}
    async with running(tmp_path, count, records=0, log=log, app=app, on_halt=on_halt) as (worker, _, life):
        await log.append(good)
        await until("the first rate", lambda: len(worker.globals.stores["rates"].data) == 1)
        await log.append(bad)
        order = {Partition("in", 0): [NewRecord(b"ann", bytes(8), 1)]}
        if on_error == "skip":
            await until("what is behind it", lambda: len(worker.globals.stores["rates"].data) == 2)
            await log.append(order)
            await until("an order", lambda: bool(seen))
            assert seen == [{"usd": 1, "eur": 2}]
            assert "a global table left a record of rates out" in caplog.text and "rates-0@2" in caplog.text
        elif on_halt == "continue":
            await until(
                "a word", lambda: "rates-0 cannot be read at 2: <lambda> cannot read rates-0@2" in worker.notice()
            )
            await log.append(order)
            await until("an order", lambda: bool(seen))
            assert seen == [{"usd": 1}] and not life.done()
        else:
            await asyncio.wait([life])
            error = life.exception()
            assert isinstance(error, DecodingFailed) and error.record == "rates-0@2"
