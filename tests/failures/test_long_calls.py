"""A sync call that lasts longer than a session: heartbeats go on beside it, status names it, and its task stays."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.values.partitioner import partition_of
from tests.cli.console import WAIT, Console
from tests.often import often

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


HOLDS = """
import time
from pathlib import Path

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=6)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, int], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += 1
    if payment.value < 0:
        with Path("called").open("a") as called:
            called.write("x")
        while not Path("goes-on").exists():
            time.sleep(0.05)
    receipts.send(payment.key, payment.value)
"""


@pytest.mark.parametrize(
    "how", often((signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP), signal.SIGTERM), ids=lambda how: how.name
)
def test_an_owner_in_a_sync_call_keeps_its_tasks_where_the_coordinator_changes(
    console: Console, how: signal.Signals
) -> None:
    """Its loop cannot look for the next one. All its tasks were fenced after --rejoin-grace, and the call was made twice."""
    console.write("bank.py", HOLDS)
    fleet = {
        name: console.start("run", "bank:app", *FAST, "--rejoin-grace", "2s", "--name", name, name="run")
        for name in ("i1", "i2", "i3")
    }
    assert console.here("wait", "bank", "--instances", "3", *WAIT).code == 0
    before = console.here("status", "bank", "--json").json
    first = before["coordinator"]["instance"]
    other = next(row["id"] for row in before["instances"] if row["id"] != first)
    held = {row["id"]: row["epoch"] for row in before["tasks"] if row["active"] == other}
    keys = (str(number) for number in range(1_000))
    key = next(key for key in keys if f"0_{partition_of(key.encode(), 6)}" in held)
    assert console.here("produce", "bank:app", "payments", stdin=json.dumps({"key": key, "value": -1})).code == 0
    console.until("the call", (console.folder / "called").exists)
    journal = (console.folder / ".orchestrator/state/bank" / first / "journal.jsonl").read_text()
    instance = next(row["pid"] for row in map(json.loads, journal.splitlines()) if row["what"] == "instance")
    os.kill(instance, how)

    def now() -> Any:
        return console.here("status", "bank", "--json").json

    # One that was killed is started again, and a worker of one that hangs goes on.
    gone = (first,) if how == signal.SIGTERM else ()

    def has_another() -> bool:
        status = now()
        here = any(row["id"] == other and not row["silent"] for row in status["instances"])
        is_whole = all(row["active"] and row["active"] not in gone for row in status["tasks"])
        return here and is_whole and status["coordinator"]["term"] > before["coordinator"]["term"]

    console.until("another coordinator, with all tasks", has_another)
    assert held.items() <= {row["id"]: row["epoch"] for row in now()["tasks"]}.items(), "fenced for a call"
    notices = lambda: "\n".join(next(row["notices"] for row in now()["instances"] if row["id"] == other))  # noqa: E731
    console.until("the call that the operator should know of", lambda: "has lasted" in notices())
    (console.folder / "goes-on").touch()
    console.until("the receipt", lambda: receipts(console) == [-1])
    assert (console.folder / "called").read_text() == "x", "the call was made again"
    if how == signal.SIGSTOP:
        os.kill(instance, signal.SIGCONT)
    if how != signal.SIGKILL:  # one that is started again may get tasks in order
        assert held.items() <= {row["id"]: row["epoch"] for row in now()["tasks"]}.items()
    for name, process in fleet.items():
        if name != first:
            process.send_signal(signal.SIGTERM)
            assert console.end(process) == 0


WAITS = """
import asyncio
from pathlib import Path

from orchestrator import App, Record, Sink
from workers.worker import record_loop

record_loop.CALL_END_S = 0.2  # a call that lasts is undone so long after a stop
app = App("bank", partitions=1, on_error="skip")
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)


@app.processor(payments, receipts)
async def settle(payment: Record[str, int], receipts: Sink[str, int]) -> None:
    value = payment.value
    if value == 7 and not Path("service").exists():
        Path("asked").touch()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:  # as clients do that have errors of their own
            {end}
    receipts.send(payment.key, value)
"""


MAKES = {"an error": 'raise ConnectionError("given up") from None', "an answer": "value = -1"}


@pytest.mark.parametrize("what", often(MAKES, "an error"))
def test_a_call_that_makes_something_else_of_its_cancellation_is_undone_at_a_stop(console: Console, what: str) -> None:
    """An error was left to on_error, and the record was not read again: lost at each stop in order. An answer was committed."""
    console.write("bank.py", WAITS.format(end=MAKES[what]))
    fleet = console.run(*FAST, instances=1)
    rows = "\n".join(json.dumps({"key": f"k{n}", "value": n}) for n in range(20))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0
    console.until("the call to wait", (console.folder / "asked").exists)
    fleet.send_signal(signal.SIGTERM)
    assert console.end(fleet) == 0
    assert "left" not in console.said("run"), console.said("run")
    (console.folder / "service").touch()
    console.run(*FAST, instances=1)
    console.until("all receipts", lambda: len(receipts(console)) >= 20)
    assert receipts(console) == list(range(20))


ASKS = """
import time
from collections.abc import Sequence

from orchestrator import App, Record, Sink

app = App("bank", partitions=1)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)


@app.processor(payments, receipts, batch=True)
def settle(payments: Sequence[Record[str, int]], receipts: Sink[str, int]) -> None:
    time.sleep(0.2)
    for payment in payments:
        receipts.send(payment.key, payment.value)
"""


@pytest.mark.long
def test_a_batch_that_costs_the_same_for_any_number_is_not_made_small(console: Console) -> None:
    """As one that asks a database once. It went down to one record a call: two thousand took seven minutes."""
    console.write("bank.py", ASKS)
    rows = "\n".join(json.dumps({"key": f"k{n}", "value": n}) for n in range(2_000))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0
    console.run(*FAST)
    console.until("all receipts", lambda: len(receipts(console)) >= 2_000)
    assert receipts(console) == list(range(2_000))


PASSES = """
from orchestrator import App, Record, Sink

app = App("bank", partitions=2)
payments = app.topic("payments", key=str, value=str)
receipts = app.topic("receipts", key=str, value=int)


@app.processor(payments, receipts)
def settle(payment: Record[str, str], receipts: Sink[str, int]) -> None:
    receipts.send(payment.key, int(payment.value[:4]))
"""


@pytest.mark.long
def test_large_records_are_not_gathered_for_as_long_as_an_interval_lasts(console: Console) -> None:
    """They would be in memory, and one commit of all of them would hold up whoever writes."""
    console.write("bank.py", PASSES)
    console.run(*FAST, "--commit-interval", "1h")
    rows = "\n".join(json.dumps({"key": f"k{n}", "value": f"{n:04}" + "x" * 200_000}) for n in range(400))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0
    console.until("a commit of most of them", lambda: len(receipts(console)) >= 300)
    assert len(receipts(console)) < 400, "the rest waits for its interval"
