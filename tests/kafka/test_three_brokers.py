"""Three brokers, replication 3, two in-sync replicas needed: each is killed and brought back under load, so the leaders of all
partitions and every transaction and group coordinator go once. Ids are counted at the end; the longest stall is printed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from state.log.kafka.broker import Broker
from state.log.kafka.log import KafkaLog
from tests.contracts.logs import until
from tests.kafka.place import ROUNDS
from tests.kills.harness import Bank

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
RECORDS, PRODUCED_IN_S = 12_000, 90.0
STALL_MAX_S, LOOK_S = 60.0, 8.0


async def test_each_broker_is_killed_and_comes_back(three: list[Broker], tmp_path: Path) -> None:
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in three))
    url = f"kafka://{','.join(one.address for one in three)}"
    bank = Bank(tmp_path / "life", RECORDS, instances=2, url=url)
    bank.produce_s = PRODUCED_IN_S
    await bank.start()
    stalls: list[float] = []
    try:
        await bank.until(RECORDS // 20)
        for turn in range(min(ROUNDS, 3)):
            killed = three[turn % 3]
            await asyncio.to_thread(killed.stop, kill=True)
            stalls.append(await stall(bank))
            await asyncio.to_thread(killed.launch)
            await until("all replicas to be in sync", lambda: in_sync(bank))
        print(json.dumps({"stalls_s": [round(one, 1) for one in stalls]}))
        assert bank.producer is not None
        await asyncio.to_thread(bank.producer.wait, PRODUCED_IN_S + STALL_MAX_S)
        await bank.finished()
        report = await bank.check("three brokers", 0.0)
        assert report.ok, report
    finally:
        await bank.stop()


async def in_sync(bank: Bank) -> bool:
    """Whether each partition of the app's topics has three replicas in sync."""
    log = bank.log
    assert isinstance(log, KafkaLog)
    answer = await log._cluster.connections.metadata(["payments", "receipts", "receipts-balances-changelog"])
    return all(len(partition[5]) == 3 for topic in answer.topics for partition in topic[4])


async def stall(bank: Bank) -> float:
    """The longest time without a commit from now on, in seconds, until commits have come for a while."""
    before, began = await bank.processed(), time.monotonic()
    last, longest, deadline = began, 0.0, began + STALL_MAX_S
    assert bank.producer is not None
    while (now := time.monotonic()) < began + LOOK_S or longest == 0.0:
        assert bank.producer.poll() is None, "the input has ended: nothing was under load"
        assert now < deadline, f"nothing was committed for {STALL_MAX_S:.0f} s"
        await asyncio.sleep(0.02)
        if (done := await bank.processed()) > before:
            before, (last, longest) = done, (time.monotonic(), max(longest, time.monotonic() - last))
    return max(longest, time.monotonic() - last)
