"""What a type checker sees: right programs pass mypy --strict, swapped or wrong parameters do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
from __future__ import annotations
import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
import msgspec
from orchestrator import App, Columns, ColumnTable, Record, Sink, Table
from orchestrator.testing import Driver

class Payment(msgspec.Struct):
    account: str
    amount: int

class Refund(msgspec.Struct):
    account: str

app = App("bank", partitions=8)
payments = app.topic("payments", key=str, value=Payment)
refunds = app.topic("refunds", key=str, value=Refund)
alerts = app.topic("alerts", key=str, value=str)
dead = app.topic("dead", key=bytes, value=bytes)
balances = app.table("balances", key=str, value=int, default=int)
"""

GOOD = """
maybe = app.topic("maybe", key=str, value=int | None)
pairs = app.table("pairs", key=tuple[str, str], value=list[int], default=list, route=lambda key: key[0],
                  expire=timedelta(days=1))
numbers = payments.rekey("numbers", key=int, by=lambda record: record.value.amount)

class Reversed:
    def encode(self, value: str) -> bytes:
        return value[::-1].encode()
    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]

own = app.topic("own", key=str, value=Reversed())

@app.resource
def model() -> Iterator[dict[str, int]]:
    yield {}

@app.resource
async def client() -> AsyncIterator[asyncio.Event]:
    yield asyncio.Event()

@app.resource
def limit() -> int:
    return 3

@app.processor(payments, balances, alerts)
def settle(payment: Record[str, Payment], balances: Table[str, int], alerts: Sink[str, str]) -> None:
    balances[payment.key] += payment.value.amount
    alerts.send(payment.key, "x", timestamp_ms=payment.timestamp_ms, headers=[("a", b"b")])
    alerts.send(payment.key, None)

@app.processor(payments, pairs, batch=True, on_error=dead)
def many(payments: Sequence[Record[str, Payment]], pairs: Table[tuple[str, str], list[int]]) -> None:
    for payment in payments:
        pairs[payment.key, payment.value.account].append(1)
        for key, values in pairs.prefix((payment.key,)):
            values.append(len(key))

@app.processor(payments, model, client, limit, timeout=timedelta(seconds=5))
async def ask(payment: Record[str, Payment], model: dict[str, int], client: asyncio.Event, limit: int) -> None:
    await client.wait()

@app.processor([payments, refunds], balances)
def both(record: Record[str, Payment | Refund], balances: Table[str, int]) -> None: ...

@app.processor([payments], maybe)
def one(record: Record[str, Payment], maybe: Sink[str, int | None]) -> None: ...

@app.processor(numbers, own)
def count(record: Record[int, Payment], own: Sink[str, str]) -> None: ...

@app.processor(payments, balances, alerts, limit, columns=True, on_error=dead)
def by_arrays(
    batch: Columns[str, Payment], balances: ColumnTable[str, int], alerts: Sink[str, str], limit: int
) -> None:
    keys = batch.table["key"]
    balances.put(keys, balances.get(keys))
    alerts.send(keys, keys, timestamp_ms=batch.table["timestamp_ms"])

def test() -> None:
    with Driver(app) as bank:
        bank.send(payments, "ann", Payment("ann", -5))
        assert bank.table(balances) == {"ann": -5}
        assert bank.items(alerts) == [("ann", "overdrawn")]
    balance, alert = balances.fake(), alerts.fake()
    settle(payments.record("ann", Payment("ann", -5)), balance, alert)
    assert balance == {"ann": -5} and alert == [("ann", "overdrawn")]
"""

BAD = {
    "swapped": """
@app.processor(payments, balances, alerts)
def a(payment: Record[str, Payment], alerts: Sink[str, str], balances: Table[str, int]) -> None: ...""",
    "value of a table": """
@app.processor(payments, balances)
def a(payment: Record[str, Payment], balances: Table[str, str]) -> None: ...""",
    "one is missing": """
@app.processor(payments, balances)
def a(payment: Record[str, Payment]) -> None: ...""",
    "one too many": """
@app.processor(payments, balances)
def a(payment: Record[str, Payment], balances: Table[str, int], alerts: Sink[str, str]) -> None: ...""",
    "type of the record": """
@app.processor(payments, alerts)
def a(payment: Record[str, int], alerts: Sink[str, str]) -> None: ...""",
    "a batch is a sequence": """
@app.processor(payments, alerts, batch=True)
def a(payment: Record[str, Payment], alerts: Sink[str, str]) -> None: ...""",
    "no batch is none": """
@app.processor(payments, alerts)
def a(payment: Sequence[Record[str, Payment]], alerts: Sink[str, str]) -> None: ...""",
    "columns are no records": """
@app.processor(payments, balances, columns=True)
def a(payment: Record[str, Payment], balances: ColumnTable[str, int]) -> None: ...""",
    "by arrays no dict is given": """
@app.processor(payments, balances, columns=True)
def a(batch: Columns[str, Payment], balances: Table[str, int]) -> None: ...""",
    "values of the columns' table": """
@app.processor(payments, balances, columns=True)
def a(batch: Columns[str, Payment], balances: ColumnTable[str, str]) -> None: ...""",
    "columns= is what gives columns": """
@app.processor(payments, balances)
def a(batch: Columns[str, Payment], balances: ColumnTable[str, int]) -> None: ...""",
    "a table is no source": """
@app.processor(balances, alerts)
def a(payment: Record[str, Payment], alerts: Sink[str, str]) -> None: ...""",
    "async too": """
@app.processor(payments, balances)
async def a(payment: Record[str, Payment], balances: Table[str, str]) -> None: ...""",
    "a definition is not the data": """
balances["ann"] = 3""",
    "a definition has no send": """
alerts.send("ann", "x")""",
    "key of a re-key": """
payments.rekey("n", key=int, by=lambda record: record.key)""",
    "what the driver sends": """
Driver(app).send(payments, "ann", "five")""",
    "a record cannot be changed": """
payments.record("ann", Payment("ann", 1)).key = "bob\"""",
}


def check(
    folder: Path, programs: dict[str, str], monkeypatch: pytest.MonkeyPatch, head: str = HEAD
) -> dict[str, list[str]]:
    """mypy's errors for each program, in one run."""
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    paths = {name: folder / f"program_{number}.py" for number, name in enumerate(programs)}
    for name, text in programs.items():
        paths[name].write_text(head + text + "\n")
    out, problems, _ = api.run(
        ["--strict", "--config-file=", "--cache-dir", str(folder / "cache"), *map(str, paths.values())]
    )
    assert not problems
    lines = [line for line in out.splitlines() if ": error: " in line]
    assert all(any(path.name in line for path in paths.values()) for line in lines), out
    return {name: [line for line in lines if path.name in line] for name, path in paths.items()}


def test_right_programs_pass_and_wrong_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(tmp_path, {"right": GOOD, **BAD}, monkeypatch)
    assert found.pop("right") == []
    assert [name for name, errors in found.items() if not errors] == []
