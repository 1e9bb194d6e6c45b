"""`--on-halt continue`: a task whose processor stops waits for an operator, across owners; the others go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.values.partitioner import partition_of
from tests.cli.console import Console
from tests.often import often
from workers.commands import query
from workers.journal import read_journals

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms", "--on-halt", "continue")
APP = """
import os
from pathlib import Path

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=2)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, int], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += 1
    if payment.value == 17 and not Path("repaired").exists():
        with open("tries", "a") as tries:
            tries.write("x")
        {end}
    receipts.send(payment.key, payment.value)
"""
ENDS = {"raises": 'raise ValueError("not 17")', "exits": "os._exit(0)"}


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    made.close()


def pay(console: Console, payments: Iterable[tuple[str, int]]) -> None:
    rows = "\n".join(json.dumps({"key": key, "value": value}) for key, value in payments)
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0


def produce(console: Console) -> None:
    pay(console, ((f"k{n}", n) for n in range(40)))


def receipts(console: Console) -> list[int]:
    return sorted(row["value"] for row in map(json.loads, console.here("consume", "bank", "receipts").out.splitlines()))


def halted(console: Console) -> list[dict[str, Any]]:
    return [task for task in console.here("status", "bank", "--json").json["tasks"] if task["halted"] is not None]


def pid_of(console: Console, instance: str) -> int:
    rows = (console.folder / f".orchestrator/state/bank/{instance}/journal.jsonl").read_text().splitlines()
    return int([row for row in map(json.loads, rows) if row["what"] == "instance"][-1]["pid"])


def test_an_error_as_long_as_a_record_keeps_its_worker_in_the_group(console: Console) -> None:
    """Its heartbeat was over the limit of a message: each session of the worker ended at once, and none of its tasks ran any more."""
    console.write("bank.py", APP.format(end='raise ValueError("no " * 100_000)'))
    console.run(*FAST)
    produce(console)
    console.until("the halt", lambda: bool(halted(console)))
    console.until(
        "all of the other task",
        lambda: (
            len(receipts(console))
            >= sum(partition_of(f"k{n}".encode(), 2) != partition_of(b"k17", 2) for n in range(40))
        ),
    )
    pay(console, ((f"k{n}", 100 + n) for n in range(40)))
    console.until("what comes meanwhile", lambda: any(value >= 100 for value in receipts(console)))
    (there,) = console.here("status", "bank", "--json").json["instances"]
    assert there["state"] == "running" and not there["silent"]
    (notice,) = there["notices"]
    assert "is halted at" in notice and "no no no" in notice and notice.endswith("...")


def journal(console: Console) -> list[dict[str, Any]]:
    return list(read_journals(console.folder / ".orchestrator/state/bank"))


@pytest.mark.parametrize("how", often(ENDS, "raises"))
def test_no_next_owner_tries_the_record_and_resume_skips_it(console: Console, how: str) -> None:
    console.write("bank.py", APP.format(end=ENDS[how]))
    console.run(*FAST, instances=2)
    produce(console)
    console.until("a halted task", lambda: bool(halted(console)))
    [task] = halted(console)
    assert task["halted"]["record"].startswith("payments-") and "settle" in task["halted"]["error"]
    explained = console.here("explain", "bank", task["id"]).out
    assert f"{task['id']} is halted at {task['halted']['record']}: " in explained, explained
    assert f"`orchestrator resume bank {task['id']}`" in explained
    tries = (console.folder / "tries").read_text()
    parent = pid_of(console, task["active"])
    for pid in [*map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()), parent]:
        os.kill(pid, signal.SIGKILL)

    def elsewhere() -> bool:
        return any(t["active"] not in (None, task["active"]) or t["epoch"] > task["epoch"] for t in halted(console))

    console.until("another owner", elsewhere)
    waited = console.here("wait", "bank", "--instances", "2", "--json")
    assert waited.code == 0 and waited.json["halted"] == [task["id"]], waited
    assert f"warning: {task['id']} is halted at {task['halted']['record']}; `orchestrator resume bank" in waited.err
    assert 17 not in receipts(console)

    def waiting() -> int:
        return sum(one["input_lag"] or 0 for one in halted(console))  # of an owner that holds it and never processed

    console.until("what waits behind the halt", lambda: waiting() > 0)
    before = waiting()
    pay(console, ((f"k{n}", 100 + n) for n in range(40)))
    console.until("what came meanwhile", lambda: waiting() > before)
    assert (console.folder / "tries").read_text() == tries, "a next owner tried the record again"
    done = console.here("resume", "bank", task["id"], "--skip")
    assert done.code == 0 and task["halted"]["record"] in done.out
    console.until("all others", lambda: receipts(console) == [n for n in (*range(40), *range(100, 140)) if n != 17])
    console.until("the end of the halt", lambda: not halted(console))
    assert (console.folder / "tries").read_text() == tries
    started = [(row["task"], row["epoch"]) for row in journal(console) if row["what"] == "started"]
    assert len(started) == len(set(started)), "history would show that it was restored when it was resumed"
    assert console.here("resume", "bank", task["id"]).out == f"nothing to do: {task['id']} is not halted\n"
    for wrong in ("9_9", "0_99", "0"):
        done = console.here("resume", "bank", wrong)
        assert done.code == 2 and f"there is no task {wrong} in 'bank'" in done.err


def test_resume_tries_the_record_again(console: Console) -> None:
    console.write("bank.py", APP.format(end=ENDS["raises"]))
    console.run(*FAST, instances=1)
    produce(console)
    console.until("a halted task", lambda: bool(halted(console)))
    [task] = halted(console)
    console.write("repaired", "")
    parent = pid_of(console, task["active"])
    [worker] = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    os.kill(worker, signal.SIGSTOP)  # so that it sees neither alone
    assert "goes on behind" in console.here("resume", "bank", task["id"], "--skip").out
    done = console.here("resume", "bank", task["id"])
    os.kill(worker, signal.SIGCONT)
    assert done.code == 0 and "; it was to go on without it, which is taken back\n" in done.out, done
    console.until("all receipts", lambda: receipts(console) == list(range(40)))
    console.until("the end of the halt", lambda: not halted(console))  # a heartbeat later


def test_what_waits_behind_a_halt_is_not_called_absent(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is in the log: to say that there is no such key would be wrong, and so would an old value without a word."""
    monkeypatch.setattr(query, "PATIENT_S", query.FRESH_S)
    console.write("bank.py", APP.format(end=ENDS["raises"]))
    console.run(*FAST)
    pay(console, [("ann", 1)])
    console.until("the first", lambda: console.here("query", "bank", "balances", "ann").out == "1\n")
    pay(console, [("ann", 17)])
    console.until("the halt", lambda: halted(console))
    old = console.here("query", "bank", "balances", "ann")
    assert (old.code, old.out) == (0, "1\n") and "warning: 1 record waits in the inputs of 0_" in old.err, old
    task = halted(console)[0]["id"]
    key = next(f"k{n}" for n in range(40) if f"0_{partition_of(f'k{n}'.encode(), 2)}" == task)
    pay(console, [(key, 2)])
    new = console.here("query", "bank", "balances", key)
    assert (
        new.code == 5 and f"has no key {key} yet, and 2 records wait in the inputs of {task}; try again" in new.err
    ), new
