"""A worker that stands still within a commit, without a standby: its tasks wait for it, and what others write is read meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.transaction import EndTxnRequest_v0

from state.errors import Fenced
from state.log.protocol import TaskCommit
from tests.contracts.logs import records, until, values
from tests.kafka.place import APP, OUT, Place, count, owner
from tests.kills.harness import DEADLINE_S, Bank

pytestmark = pytest.mark.kafka


async def test_a_transaction_that_is_the_same_at_two_looks_is_ended_and_its_tasks_stay(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, silent, other = await place.topics(), await place.open(), await place.open()
    lease = await log.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease), owner(1, lease, "0_1", "v")])
    await silent.open_writer(APP, "w")
    await other.open_writer(APP, "v")
    await silent.commit(APP, "w", [count(1)])
    send, stuck = silent._cluster.connections.send, asyncio.Event()

    async def standing_still(node: int, request: Any, *given: Any) -> Any:
        if isinstance(request, EndTxnRequest_v0):
            stuck.set()
            await asyncio.Event().wait()
        return await send(node, request, *given)

    monkeypatch.setattr(silent._cluster.connections, "send", standing_still)
    commit = asyncio.create_task(silent.commit(APP, "w", [count(2)]))
    await stuck.wait()
    await other.commit(APP, "v", [TaskCommit("0_1", 1, {OUT: records("other")}, {})])
    assert (await log.ends([OUT]))[OUT] < (await log.written([OUT]))[OUT] - 1  # nothing of it is read
    found = await log.end_left_open(lease, {"w": -1, "v": -1})
    assert list(found.open) == ["w"] and not found.ended
    assert (
        await log.end_left_open(lease, {"w": found.open["w"] - 1}) == found
    )  # another one than at the look before: it goes on
    assert await log.end_left_open(lease, {**found.open, "v": -1}) == ({}, ["w"])

    assert await values(log, OUT) == ["1", "other"]
    assert (await log.owners(APP))["0_0"] == owner(1, lease)
    commit.cancel()
    monkeypatch.setattr(silent._cluster.connections, "send", send)
    await asyncio.gather(commit, return_exceptions=True)
    with pytest.raises(Fenced, match=r"^transactional id w was fenced"):
        await silent.commit(APP, "w", [count(3)])
    await other.commit(APP, "v", [TaskCommit("0_1", 1, {OUT: records("more")}, {})])
    assert await log.end_left_open(lease, {**found.open, "v": -1}) == ({}, [])


@pytest.mark.processes
async def test_what_a_stopped_worker_left_open_is_ended_long_before_its_session_times_out(
    place: Place, tmp_path: Path
) -> None:
    bank = Bank(tmp_path, 6_000, instances=2, url=f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}")
    bank.session_timeout, bank.produce_s = "5m", 12.0
    log, choice, other = await place.open(), random.Random(7), "i1"
    await bank.start()
    try:
        await bank.until(300)
        host = await bank.holder()
        other = next(name for name in ("i1", "i2") if name != host)

        async def its_writers() -> set[str]:
            return {
                o.transactional_id
                for o in (await log.owners("receipts")).values()
                if o.member.startswith(other) and o.transactional_id
            }

        for _ in range(200):
            bank.signal(other, signal.SIGSTOP)
            writers = await its_writers()
            if left := await log._writers.open_since("receipts", writers):
                break
            bank.signal(other, signal.SIGCONT)
            await asyncio.sleep(choice.random() * 0.05)  # anywhere within a commit: that is what is tried
        assert left, "it was never stopped within a commit"

        async def is_ended() -> bool:
            return not await log._writers.open_since("receipts", left)

        await until("the end of what it left open", is_ended, DEADLINE_S)
        assert await its_writers() == writers  # its disk may come back
        bank.signal(other, signal.SIGCONT)
        await bank.finished()
        report = await bank.check("a silent worker", 0.1)
        assert report.ok, report
        assert "left a transaction open" in (tmp_path / "fleet.log").read_text()
    finally:
        bank.signal(other, signal.SIGCONT)
        await bank.stop()
