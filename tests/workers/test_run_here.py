"""`app.run()`: one instance in the user's own process, with the answers of `orchestrator run`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import WAIT, Console

pytestmark = pytest.mark.processes
SCRIPT = """
import asyncio
import sys

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=2)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, int], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    if payment.value == 13:
        raise ValueError("unlucky")
    balances[payment.key] += payment.value
    receipts.send(payment.key, payment.value)


if __name__ == "__main__":
    app.run(**dict(word.split("=") for word in sys.argv[1:]))
"""


# Interrupted by its own code, where the topics are being prepared.
SLOW = """
def interrupt(value):
    os.kill(os.getpid(), signal.SIGINT)
    return None

bank.app.describe = lambda *given: interrupt(given) or type(bank.app).describe(bank.app, *given)
bank.app.run()
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    made.write("bank.py", SCRIPT)
    yield made
    made.close()


def test_an_app_runs_in_its_own_script(console: Console) -> None:
    rows = "\n".join(json.dumps({"key": f"k{n % 4}", "value": n}) for n in range(10))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0
    running = console.script("bank.py", name="script")
    console.until("the receipts", lambda: console.here("consume", "bank", "receipts").out.count("\n") == 10)
    assert console.balance("k1") == "15\n"
    status = console.here("status", "bank", "--json").json
    assert [one["pid"] for one in status["instances"]] == [running.pid]
    beside = console.here("run", "bank:app")
    assert beside.code == 3 and f"is run already by process {running.pid}" in beside.err
    running.send_signal(signal.SIGINT)
    assert console.end(running) == 0, console.said("script")
    again = console.script("bank.py", name="again")
    assert console.here("produce", "bank:app", "payments", stdin='{"key": "k1", "value": 13}').code == 0
    assert console.end(again) == 1
    said = console.said("again")
    assert "unlucky" in said and 'bank.py", line' in said and "workers/" not in said, said


def test_a_program_goes_on_behind_it_and_runs_it_again(console: Console) -> None:
    console.write("twice.py", "import bank\nbank.app.run()\nprint('between', flush=True)\nbank.app.run()\n")
    program = console.script("twice.py", name="twice")
    for number in (1, 2):
        assert console.here("produce", "bank:app", "payments", stdin='{"key": "ann", "value": 1}').code == 0
        console.until("the receipt", lambda n=number: console.here("consume", "bank", "receipts").out.count("\n") == n)
        assert "between" not in console.said("twice") or number == 2
        program.send_signal(signal.SIGINT)
    assert console.end(program) == 0, console.said("twice")


def test_a_fleet_beside_it_has_another_name(console: Console) -> None:
    """With state elsewhere the lock of the state folder tells it nothing: both were i1, and took each other's tasks for ever."""
    running = console.script("bank.py", name="script")
    assert console.here("wait", "bank", *WAIT).code == 0
    fleet = console.start("run", "bank:app", "--state-dir", "elsewhere", name="run")
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0, console.said("run")
    status = console.here("status", "bank", "--json").json
    assert [one["id"] for one in status["instances"]] == ["i1", "i2"]
    running.send_signal(signal.SIGINT)
    assert console.end(running) == 0, console.said("script")
    refused = console.script("bank.py", name="refused")
    assert console.end(refused) == 3 and f"by process {fleet.pid}" in console.said("refused")
    fleet.terminate()
    assert console.end(fleet) == 0
    again = console.script("bank.py", name="again")  # its name is free
    assert console.here("wait", "bank", *WAIT).code == 0
    again.send_signal(signal.SIGINT)
    assert console.end(again) == 0, console.said("again")


def test_a_log_in_memory_leaves_the_state_of_another_alone(console: Console) -> None:
    """It was wiped, as state of another log, and the next start restored all of it."""
    journal = console.folder / ".orchestrator/state/bank/i1/journal.jsonl"
    lasting = console.script("bank.py", name="lasting")
    assert console.here("wait", "bank", *WAIT).code == 0
    lasting.send_signal(signal.SIGINT)
    assert console.end(lasting) == 0, console.said("lasting")
    before = journal.read_bytes()
    (console.folder / "tmp").mkdir()
    console.environment["TMPDIR"] = str(console.folder / "tmp")
    passing = console.script("bank.py", "log=memory:", name="passing")
    elsewhere = "tmp/orchestrator-*/bank/i1/journal.jsonl"
    console.until("its state", lambda: journal.read_bytes() != before or [*console.folder.glob(elsewhere)])
    passing.send_signal(signal.SIGINT)
    assert console.end(passing) == 0, console.said("passing")
    assert journal.read_bytes() == before
    assert not [*(console.folder / "tmp").iterdir()]


def test_an_interrupt_while_it_begins_is_no_traceback(console: Console) -> None:
    console.write("slow.py", "import bank, os, signal\n" + SLOW)
    running = console.script("slow.py", name="slow")
    assert console.end(running) == 130
    assert "Traceback" not in console.said("slow"), console.said("slow")


def test_where_it_cannot_run(console: Console) -> None:
    for code, words in (
        (
            "from bank import app; import threading; t = threading.Thread(target=app.run); t.start(); t.join()",
            "main thread",
        ),
        ("from bank import app\nimport asyncio\nasync def f(): app.run()\nasyncio.run(f())", "outside of a coroutine"),
        ("from bank import app; app.run(log='nowhere')", "unknown kind of log"),
        ("from orchestrator import App; App('x').run(log='memory:')", "has no processors"),
    ):
        (console.folder / "it.err").unlink(missing_ok=True)
        console.end(console.script("-c", code, name="it"))
        said = console.said("it")
        assert words in said and said.startswith("error: ") and said.count("\n") == 1, said
