"""A log that is locked by another process: instances wait, say so, and go on by themselves; after `--log-timeout` they end."""

from __future__ import annotations

import json
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
RECORDS = 200
SLOW = """
import asyncio

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=4)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
async def settle(payment: Record[str, int], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += 1
    await asyncio.sleep(0.02)
    receipts.send(payment.key, payment.value)
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Console]:
    console = Console(tmp_path)
    console.write("bank.py", SLOW)
    yield console
    console.close()


@contextmanager
def locked(console: Console) -> Iterator[None]:
    """Another process writes, and does not end."""
    with closing(sqlite3.connect(console.folder / ".orchestrator/bank.db", isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


def start(console: Console, *words: str, instances: int) -> None:
    console.run(*FAST, *words, instances=instances)
    rows = "\n".join(json.dumps({"key": f"k{n % 40}", "value": n}) for n in range(RECORDS))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0
    console.until("the first receipts", lambda: len(receipts(console)) > 10)


def receipts(console: Console) -> list[int]:
    return [row["value"] for row in map(json.loads, console.here("consume", "bank", "receipts").out.splitlines())]


def test_a_locked_log_is_waited_for(slow: Console) -> None:
    start(slow, instances=2)
    before = {row["id"]: row["pid"] for row in slow.here("status", "bank", "--json").json["instances"]}
    with locked(slow):

        def both_wait() -> bool:
            rows = slow.here("status", "bank", "--json").json["instances"]
            return len(rows) == 2 and all("waits for the log" in "".join(row["notices"]) for row in rows)

        slow.until("both to say that they wait", both_wait)
    slow.until("all receipts", lambda: len(receipts(slow)) >= RECORDS)
    assert sorted(receipts(slow)) == list(range(RECORDS))
    rows = slow.here("status", "bank", "--json").json["instances"]
    assert {row["id"]: row["pid"] for row in rows} == before, "the same processes, with one line each"
    slow.until(
        "the end of the wait to be reported",
        lambda: not any(r["notices"] for r in slow.here("status", "bank", "--json").json["instances"]),
    )
    text = slow.said("run")
    assert text.count("waiting for the log to be written") <= 4 and "Traceback" not in text, text


def test_a_log_that_stays_locked_ends_the_fleet_with_a_code_of_its_own(slow: Console) -> None:
    start(slow, "--log-timeout", "3s", instances=1)
    [fleet] = slow._background[:1]
    with locked(slow):
        assert slow.end(fleet) == 6
    assert "the log could not be used for 3 s" in slow.said("run") and "Traceback" not in slow.said("run")
    slow.run(*FAST)
    slow.until("all receipts", lambda: len(receipts(slow)) >= RECORDS)
    assert sorted(receipts(slow)) == list(range(RECORDS))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="this system limits no other process")
def test_a_log_that_cannot_grow_ends_the_fleet_with_that_code(slow: Console) -> None:
    """Each commit failed in the end, which tells nothing of what became of it: nothing counted towards --log-timeout, and the fleet stood
    without a coordinator and without a word."""
    start(slow, "--log-timeout", "3s", instances=2)
    [fleet] = slow._background[:1]
    size = (slow.folder / ".orchestrator/bank.db-wal").stat().st_size
    for pid in slow.processes():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    assert slow.end(fleet) == 6, slow.said("run")
    assert "the log could not be used for 3 s" in slow.said("run") and "Traceback" not in slow.said("run")
    slow.run(*FAST)
    slow.until("all receipts", lambda: len(receipts(slow)) >= RECORDS)
    assert sorted(receipts(slow)) == list(range(RECORDS))
