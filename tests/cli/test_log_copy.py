"""`orchestrator log copy`: the bank moves from its embedded log to another one, and goes on there at the record where it was."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from pipeline.values.partitioner import partition_of
from state.log.sqlite import open_sqlite
from tests.cli.console import Console
from workers.prepare import COPY, REPARTITION

pytestmark = pytest.mark.processes
SOON = ("--heartbeat", "200ms")
OLD = "sqlite:.orchestrator/bank.db"
FIRST = [(f"k{number % 7}", number - 30) for number in range(60)]
LATER = [(f"k{number % 7}", number - 3) for number in range(20)]
PARTITIONS = {partition_of(key.encode(), 8) for key, _ in FIRST}  # that have records
DYING = """
import os, sys
import state.log.sqlite as sqlite
from orchestrator.cli.main import main

real = sqlite.SqliteLog.append

async def dying(self, records, **named):
    if any("alerts" in partition.topic for partition in records):
        os._exit(9)
    return await real(self, records, **named)

sqlite.SqliteLog.append = dying
sys.exit(main(["log", "copy", *sys.argv[1:]]))
"""


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def new(request: pytest.FixtureRequest) -> str:
    """The URL to move to."""
    if request.param == "sqlite":
        return "sqlite:elsewhere/bank.db"
    from tests.kafka.place import Place

    place = Place()
    return f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"


def totals(*payments: tuple[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for key, amount in payments:
        found[key] += amount
    return dict(found)


def balances(console: Console, log: str, *words: str) -> dict[str, int]:
    lines = console.here("table", "dump", "bank", "balances", "--log", log, *words).out.splitlines()
    return {row["key"]: row["value"] for row in map(json.loads, lines)}


def read(console: Console, topic: str, log: str) -> list[tuple[object, ...]]:
    lines = console.here("consume", "bank", topic, "--log", log).out.splitlines()
    rows = [json.loads(line) for line in lines]
    return sorted((r["partition"], r["timestamp_ms"], str(r["key"]), json.dumps(r["value"])) for r in rows)


def lived(console: Console) -> None:
    """The first payments are processed, later ones wait, and the app is stopped."""
    console.pay(*FIRST)
    run = console.run(*SOON)
    console.until("all payments", lambda: balances(console, OLD) == totals(*FIRST))
    assert console.here("settings", "set", "bank", "max-learners=7").code == 0
    refused = console.here("log", "copy", OLD, "sqlite:elsewhere/bank.db")
    assert refused.code == 3 and "runs on embedded log" in refused.err, refused
    assert not (console.folder / "elsewhere").exists()
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0
    console.pay(*LATER)


def test_an_app_goes_on_where_it_was(console: Console, new: str) -> None:
    lived(console)
    plan = console.here("log", "copy", OLD, new, "--plan", "--json").json
    assert [topic["name"] for topic in plan["topics"]] == ["alerts", "bank-balances-changelog", "payments"]
    assert plan["positions"] == len(PARTITIONS) and plan["topics"][2]["records"] == 80
    done = console.here("log", "copy", OLD, new)
    assert done.code == 0 and "payments (plain): 8 partitions, 80 records" in done.out, done
    assert read(console, "payments", new) == read(console, "payments", OLD)
    before = read(console, "alerts", OLD)
    assert read(console, "alerts", new) == before
    again = console.here("log", "copy", OLD, new)
    assert again.code == 3 and "has an application 'bank' already" in again.err, again

    run = console.start("run", "bank:app", *SOON, "--log", new, "--state-dir", "state", name="run")
    everything = totals(*FIRST, *LATER)
    console.until("all payments", lambda: balances(console, new, "--state-dir", "state") == everything)
    shown = console.here("settings", "show", "bank", "--json", "--log", new, "--state-dir", "state").json
    assert (shown["live"], shown["settings"]["max-learners"]) == ({"max-learners": "7"}, "7"), shown
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0, console.said("run")
    run = console.start("run", "bank:app", *SOON, name="run")  # the old log is as it was
    console.until("all payments", lambda: balances(console, OLD) == everything)
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0, console.said("run")
    alerts = [read(console, "alerts", log) for log in (OLD, new)]
    assert len(alerts[0]) == len(alerts[1]) > len(before), "an output is lost or doubled"
    assert [(key, value) for _, _, key, value in alerts[0]] == [(key, value) for _, _, key, value in alerts[1]]


@pytest.mark.long  # in short without processes: tests/workers/test_log_copy.py
def test_one_that_ended_half_way_is_no_start_and_goes_on(console: Console) -> None:
    new = "sqlite:elsewhere/bank.db"
    lived(console)
    console.write("dying.py", DYING)
    assert console.end(console.script("dying.py", OLD, new, name="dying")) == 9, console.said("dying")
    refused = console("run", "bank:app", "--log", new)
    assert refused.code == 3 and "run `orchestrator log copy` again" in refused.err, refused
    done = console.here("log", "copy", OLD, new, "--json")
    assert done.code == 0 and done.json["positions"] == len(PARTITIONS), done
    assert read(console, "payments", new) == read(console, "payments", OLD)


@pytest.mark.long
def test_one_that_is_killed_while_it_waits_for_the_source_is_no_start(console: Console) -> None:
    """The lease of what was killed on the source stands still for seconds: a start on the new log began anew meanwhile."""
    console.pay(("a", 1))
    new = console.folder / "new.db"

    async def killed() -> None:
        log = await open_sqlite(console.folder / ".orchestrator/bank.db", create=False)
        assert await log.acquire("bank", "c", "", await log.lease("bank")) is not None
        await log.close()

    async def noted() -> bool:
        log = await open_sqlite(new, create=False)
        try:
            return await log.metadata("bank", COPY, "from") is not None
        finally:
            await log.close()

    asyncio.run(killed())
    copy = console.start("log", "copy", OLD, "sqlite:new.db", name="copy")
    console.until("the note", lambda: new.exists() and new.stat().st_size > 0 and asyncio.run(noted()))
    copy.kill()
    copy.wait(30)
    assert console.said("copy") == ""
    refused = console("run", "bank:app", "--log", "sqlite:new.db")
    assert refused.code == 3 and "run `orchestrator log copy` again" in refused.err, refused
    assert console.here("log", "copy", OLD, "sqlite:new.db").code == 0


def test_one_that_the_source_refuses_leaves_no_note(console: Console) -> None:
    console.pay(("a", 1))

    async def refused() -> None:
        log = await open_sqlite(console.folder / ".orchestrator/bank.db", create=False)
        lease = await log.acquire("bank", "c", "", await log.lease("bank"))
        assert lease is not None
        copy = console.start("log", "copy", OLD, "sqlite:new.db", name="copy")
        while copy.poll() is None:  # as a coordinator does
            lease = await log.renew(lease)
            await asyncio.sleep(0.05)
        assert copy.returncode == 3
        await log.close()
        target = await open_sqlite(console.folder / "new.db", create=False)
        assert await target.metadata("bank", COPY, "from") is None
        await target.close()

    asyncio.run(refused())
    assert "'bank' is running (c holds its lease)" in console.said("copy")


def test_wrong_use(console: Console, tmp_path: Path) -> None:
    console.pay(("a", 1))
    for words, code, why in (
        ((OLD, OLD), 2, "is given twice"),
        ((OLD, "sqlite:new.db", "--app", "nothing"), 2, "has no application 'nothing'; it has bank"),
        (("sqlite:nothing.db", OLD), 2, "nothing.db"),
        ((OLD, "memory:"), 2, "lives in one process"),
        ((OLD, "kafka://127.0.0.1:1"), 1, "no Kafka broker answers"),
        ((OLD, "sqlite:new.db", "--kafka-config", "f"), 2, "--kafka-config has no effect"),
    ):
        done = console.here("log", "copy", *words)
        assert done.code == code and why in done.err, (words, done)
    assert console.here("log", "nothing").code == 2


def test_half_an_app_is_not_copied(console: Console) -> None:
    """A repartition of it began and did not end: the note would stay behind, and the half of it would be a start."""
    console.pay(("a", 1))

    async def begin() -> None:
        log = await open_sqlite(console.folder / ".orchestrator/bank.db", create=False)
        lease = await log.acquire("bank", "c", "", await log.lease("bank"))
        assert lease is not None
        await log.put_metadata("bank", REPARTITION, "to", b"16", lease=lease)
        await log.close()

    asyncio.run(begin())
    for more in ((), ("--plan",)):
        done = console.here("log", "copy", OLD, "sqlite:new.db", *more)
        assert done.code == 3 and "a repartition began and did not end" in done.err, done
