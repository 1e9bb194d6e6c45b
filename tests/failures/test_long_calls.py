"""A sync call that lasts longer than a session: heartbeats go on beside it, status names it, and its task stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "2s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
APP = """
import time

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=2)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, int], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += 1
    if payment.value == 7:
        time.sleep(6)
    receipts.send(payment.key, payment.value)
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    made.write("bank.py", APP)
    yield made
    made.close()


def receipts(console: Console) -> list[int]:
    return sorted(row["value"] for row in map(json.loads, console.here("consume", "bank", "receipts").out.splitlines()))


def test_an_owner_in_a_long_call_keeps_its_tasks_and_says_which_call(console: Console) -> None:
    console.run(*FAST, instances=2)
    before = {task["id"]: task["epoch"] for task in console.here("status", "bank", "--json").json["tasks"]}
    rows = "\n".join(json.dumps({"key": f"k{n}", "value": n}) for n in range(20))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0

    def notices() -> str:
        rows = console.here("status", "bank", "--json").json["instances"]
        return "\n".join(notice for row in rows for notice in row["notices"])

    console.until("the call to be named", lambda: "the call of settle with payments-" in notices())
    assert "has lasted" in notices()
    console.until("all receipts", lambda: len(receipts(console)) >= 20)
    assert receipts(console) == list(range(20))
    console.until("no call that lasts", lambda: notices() == "")
    after = {task["id"]: task["epoch"] for task in console.here("status", "bank", "--json").json["tasks"]}
    assert after == before, "no task was fenced or moved for it"
