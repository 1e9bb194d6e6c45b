"""A processor that ends its process, or never returns: the record is found, named, and left to on_error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.often import often

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
APP = """
import ctypes
import os
import sys
import time

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=2, on_error={policy})
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
dead = app.topic("dead", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances, receipts)
def settle(payment: Record[str, int], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    balances[payment.key] += 1
    if payment.value == 17:
        {end}
    receipts.send(payment.key, payment.value)
"""
ENDS = {
    "exit 0": ("os._exit(0)", "ended its worker process (exit code 0)"),
    "abort": ("os.abort()", "ended its worker process (signal 6)"),
    # As a regular expression that backtracks for ever, and without its hours of a core: the interpreter is not given back.
    "no thread runs": ("ctypes.PyDLL(None).sleep(600)", "ended its worker process (exit code 1)"),
    "endless": ("while True: pass", "lasted longer than --max-call of 1 s"),
}


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path)
    yield made
    made.close()


def produce(console: Console) -> None:
    rows = "\n".join(json.dumps({"key": f"k{n}", "value": n}) for n in range(40))
    assert console.here("produce", "bank:app", "payments", stdin=rows).code == 0


def values(console: Console, topic: str) -> list[int]:
    return sorted(row["value"] for row in map(json.loads, console.here("consume", "bank", topic).out.splitlines()))


@pytest.mark.parametrize("how", often(ENDS, "exit 0", "endless"))
def test_where_it_stops_the_fleet_ends_and_names_the_record(console: Console, how: str) -> None:
    end, reason = ENDS[how]
    console.write("bank.py", APP.format(policy='"stop"', end=end))
    fleet = console.run(*FAST, "--max-call", "1s", instances=1)
    produce(console)
    assert console.end(fleet) == 1
    text = console.said("run")
    assert "error: settle at payments-" in text and reason in text and "Traceback" not in text, text
    assert 17 not in values(console, "receipts")


@pytest.mark.parametrize("how", often(ENDS, "abort"))
def test_a_dead_letter_keeps_the_record_and_the_others_go_on(console: Console, how: str) -> None:
    end, reason = ENDS[how]
    console.write("bank.py", APP.format(policy='"dead"', end=end))
    console.run(*FAST, "--max-call", "1s", instances=2)
    produce(console)
    console.until("all others", lambda: len(values(console, "receipts")) >= 39)
    console.until("the dead letter", lambda: len(values(console, "dead")) >= 1)
    assert values(console, "receipts") == [n for n in range(40) if n != 17] and values(console, "dead") == [17]
    [letter] = map(json.loads, console.here("consume", "bank", "dead").out.splitlines())
    assert reason in str(letter["headers"])


OWN_ENDS = {
    "what it awaits is cancelled": "waited = asyncio.ensure_future(asyncio.sleep(60)); waited.cancel(); await waited",
    "it cancels what it runs in": "asyncio.current_task().cancel(); await asyncio.sleep(60)",
    "an error that is no Exception": "raise BaseException('odd')",
}


@pytest.mark.long
@pytest.mark.parametrize("how", often(OWN_ENDS, "it cancels what it runs in"))
def test_an_async_call_that_ends_itself_in_an_odd_way_is_left_to_its_policy(console: Console, how: str) -> None:
    app = APP.format(policy='"dead"', end=OWN_ENDS[how]).replace("import os", "import asyncio\nimport os")
    console.write("bank.py", app.replace("def settle", "async def settle"))
    console.run(*FAST, instances=1)
    produce(console)
    console.until("all others", lambda: len(values(console, "receipts")) >= 39)
    console.until("the dead letter", lambda: len(values(console, "dead")) >= 1)
    assert values(console, "receipts") == [n for n in range(40) if n != 17] and values(console, "dead") == [17]


CODEC = """

class Odd:
    def encode(self, value: int) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes) -> int:
        if data == b"17":
            raise asyncio.CancelledError
        return int(data)

"""


def test_a_codec_that_raises_what_ends_a_worker_is_left_to_the_policy(console: Console) -> None:
    """The worker took a cancellation for its own end: the fleet ended with 0, without a line."""
    app = APP.format(policy='"dead"', end="pass").replace("import ctypes", "import asyncio\nimport ctypes")
    console.write("bank.py", app.replace("\napp = ", CODEC + "\napp = ", 1).replace("value=int)", "value=Odd())", 1))
    fleet = console.run(*FAST, instances=1)
    produce(console)
    console.until("the dead letter", lambda: len(values(console, "dead")) >= 1)
    console.until("all others", lambda: values(console, "receipts") == [n for n in range(40) if n != 17])
    assert "was cancelled by what it called" in console.said("run")
    assert fleet.poll() is None


@pytest.mark.long
def test_a_crash_beside_a_thread_that_lasts_is_a_crash(console: Console) -> None:
    """Its process is ended from within, a while later, and with the code that it was to end with. That while is a second here:
    every crash takes it, and the record is found by the second one."""
    end = "threading.Thread(target=time.sleep, args=(600,)).start(); raise BaseException('odd')"
    app = APP.format(policy='"dead"', end=end).replace("import os", "import os\nimport threading", 1)
    console.write(
        "bank.py", app.replace("\napp = ", "\nfrom workers.worker import worker\n\nworker.LIMIT_S = 1.0\napp = ", 1)
    )
    fleet = console.run(*FAST, instances=1)
    produce(console)
    console.until("the dead letter", lambda: values(console, "dead") == [17])
    console.until("all others", lambda: values(console, "receipts") == [n for n in range(40) if n != 17])
    assert "did not end within 1 s of its last work, and is ended" in console.said("run")
    assert fleet.poll() is None


BESIDE = """

seen = app.table("seen", key=str, value=int, default=int)
by_rest = payments.rekey("by-rest", key=int, by=lambda payment: payment.value % 7)
rests = app.table("rests", key=int, value=int, default=int)


@app.processor(payments, seen)
def count(payment: Record[str, int], seen: Table[str, int]) -> None:
    seen[payment.key] += 1


@app.processor(by_rest, rests)
def add(payment: Record[int, int], rests: Table[int, int]) -> None:
    rests[payment.key] += 1


@app.processor(payments, receipts, on_error="skip")
def ends_too(payment: Record[str, int], receipts: Sink[str, int]) -> None:
    if payment.value == {other}:
        os.abort()
"""


@pytest.mark.parametrize(
    ("how", "other"),
    [("abort", 17), pytest.param("endless", 23, marks=pytest.mark.long)],
    ids=["two end it at one record", "one lasts, one ends it at another record"],
)
def test_the_others_that_read_the_record_are_called_with_it(console: Console, how: str, other: int) -> None:
    """A re-key and a processor beside the two that end their process have no policy at all."""
    end, reason = ENDS[how]
    app = APP.replace(", on_error={policy})", ")")
    text = app.replace("payments, balances, receipts)\ndef", 'payments, balances, receipts, on_error="dead")\ndef')
    console.write("bank.py", text.format(end=end) + BESIDE.format(other=other))
    fleet = console.run(*FAST, "--max-call", "1s", instances=1)
    produce(console)

    def dump(table: str) -> dict[object, int]:
        rows = map(json.loads, console.here("table", "dump", "bank", table).out.splitlines())
        return {row["key"]: row["value"] for row in rows}

    console.until("all of it", lambda: fleet.poll() is not None or sum(dump("rests").values()) >= 40)
    console.until("the dead letter", lambda: fleet.poll() is not None or len(values(console, "dead")) >= 1)
    assert fleet.poll() is None, console.said("run")
    assert values(console, "receipts") == [n for n in range(40) if n != 17] and values(console, "dead") == [17]
    assert dump("seen") == {f"k{n}": 1 for n in range(40)}
    assert dump("balances") == {f"k{n}": 1 for n in range(40) if n != 17}
    [letter] = map(json.loads, console.here("consume", "bank", "dead").out.splitlines())
    assert reason in str(letter["headers"])
    assert "ends_too at payments-" in console.said("run")


TWO = """
import asyncio
import os
import time

from orchestrator import App

app = App("bank", partitions=1, on_error="dead")
payments = app.topic("payments", key=str, value=int)
refunds = app.topic("refunds", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)
refunded = app.topic("refunded", key=str, value=int)
dead = app.topic("dead", key=str, value=int)


@app.processor(payments, receipts)
def settle(payment, receipts):
    time.sleep(0.005)  # so that its records wait as long as the other task's calls do
    receipts.send(payment.key, payment.value)


@app.processor(refunds, refunded)
async def refund(payment, refunded):
    await asyncio.sleep(0.1)
    if payment.value == 2:
        {end}
    refunded.send(payment.key, payment.value)
"""


@pytest.mark.parametrize(
    "end",
    ["os._exit(3)", pytest.param("await asyncio.to_thread(os._exit, 3)", marks=pytest.mark.long)],
    ids=["itself", "a thread of it"],
)
def test_a_call_that_waits_is_found_beside_the_records_of_another_task(console: Console, end: str) -> None:
    """The others' calls, which did not wait, took its note: it was not found, or they were left out for it."""
    console.write("bank.py", TWO.format(end=end))
    for topic, count in (("refunds", 5), ("payments", 1_500)):
        rows = "\n".join(json.dumps({"key": "k", "value": n}) for n in range(count))
        assert console.here("produce", "bank:app", topic, stdin=rows).code == 0
    console.run(*FAST, instances=1)
    console.until("all of them", lambda: len(values(console, "receipts")) + len(values(console, "refunded")) >= 1_504)
    assert (values(console, "dead"), values(console, "refunded")) == ([2], [0, 1, 3, 4])
    assert values(console, "receipts") == [*range(1_500)]
