"""Another program uses the transactional id of a worker that runs: its fleet warns, goes on under another id, and loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from state.log.kafka.writers import writer_id
from tests.cli.console import WAIT
from tests.contracts.logs import until
from tests.kafka.place import Place
from tests.kills.harness import DEADLINE_S, INPUTS, Bank

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
APP = "receipts"


async def has_some(bank: Bank) -> bool:
    assert bank.log is not None
    if "payments" not in await bank.log.topics(["payments"]):
        return False
    return sum((await bank.log.ends(INPUTS)).values()) > 200


async def stopped(bank: Bank) -> None:
    assert bank.producer is not None
    bank.producer.kill()
    await asyncio.to_thread(bank.producer.wait)


async def test_another_programs_producer_takes_the_id_of_a_worker_under_load(place: Place, tmp_path: Path) -> None:
    bank = Bank(tmp_path, 6_000, instances=2, url=f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}")
    bank.produce_s = 12
    await bank.start()
    try:
        log, fleet = bank.log, bank.fleet
        assert log is not None and fleet is not None
        await until("the first payments", lambda: has_some(bank), DEADLINE_S)
        await stopped(bank)  # the rest comes once the group has begun: a worker without work has nothing to commit
        stable = bank.orchestrator("wait", APP, "--instances", "2", *WAIT, name="wait")
        assert await asyncio.to_thread(stable.wait) == 0, (tmp_path / "wait.log").read_text()
        bank.produce()
        await bank.until(await bank.processed() + 300)
        before = await log.owners(APP)
        taken = next(one.transactional_id for one in before.values() if one.transactional_id)
        its_tasks = [scope for scope, one in before.items() if one.transactional_id == taken]
        name = place.prefix + writer_id(APP, taken)
        warned = f"fenced: another program has initialised transactional id {name}"
        async with AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{place.port}", transactional_id=name) as theirs:
            await theirs.begin_transaction()

            async def is_under_other_ids() -> bool:
                found = await log.owners(APP)
                return warned in (tmp_path / "fleet.log").read_text() and all(
                    found[one].transactional_id not in ("", taken) for one in its_tasks
                )

            await until("the warning, and its tasks under another id", is_under_other_ids, DEADLINE_S)
            await theirs.abort_transaction()
        lines = (tmp_path / "fleet.log").read_text().splitlines()
        assert [" WARNING " in line for line in lines if warned in line] == [True], lines
        await bank.finished()
        report = await bank.check("a taken id", 0.2)
        assert report.ok, report
        assert fleet.poll() is None
    finally:
        await bank.stop()
