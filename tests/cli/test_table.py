"""`table scan` and `table dump` of a group that runs, and of the state that one left on disk."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.console import WAIT, Console, Done

pytestmark = pytest.mark.processes
SOON = ("--heartbeat", "200ms")
NUMBERS = """
from datetime import timedelta
from orchestrator import App, Tumbling
app = App("keyed", partitions=2)
given = app.topic("given", key=int, value=dict)
latest = app.table("latest", key=int, value=dict)
fading = app.table("fading", key=int, value=str, expire=timedelta(hours=1))
hourly = app.table("hourly", key=int, value=int, default=int, window=Tumbling(hours=1))

@app.processor(given, latest, fading, hourly)
def keep(record, latest, fading, hourly):
    latest[record.key] = record.value
    fading[record.key] = "x"
    hourly[record.key] += 1
"""


def pairs(done: Done) -> dict[Any, Any]:
    assert done.code == 0, done
    rows = [json.loads(line) for line in done.out.splitlines()]
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key twice"
    return found


def test_scan_and_dump_of_a_group_and_of_what_it_left(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.commands.table_pairs.PAGE", 100)  # a task has about 300 pairs
    run = console.bank().run(*SOON, instances=2)
    paid = {f"k{number:04}": number for number in range(2_500)}
    paid["other"] = 7
    console.pay(*paid.items())
    console.until("all of them", lambda: console.here("status", "bank", "--json").json["input_lag"] == 0)
    dumped = console.here("table", "dump", "bank", "balances")
    assert pairs(dumped) == paid and dumped.err == ""
    scanned = console.here("table", "scan", "bank", "balances")
    assert len(pairs(scanned)) == 100 and pairs(scanned).items() <= paid.items()
    assert "the first 100" in scanned.err
    assert pairs(console.here("table", "scan", "bank", "balances", "--prefix", "oth")) == {"other": 7}
    assert len(pairs(console.here("table", "scan", "--prefix", "k", "bank", "balances", "--limit", "1500"))) == 1_500
    between = console.here("table", "scan", "bank", "balances", "--from", "k0010", "--until", "k0020")
    assert pairs(between) == {f"k{number:04}": number for number in range(10, 20)}
    assert console.here("secret", "bank", "--right", "read", "--out", "read.secret").code == 0
    reading = console.here("table", "dump", "bank", "balances", "--secret-file", "read.secret")
    assert pairs(reading) == paid

    for taken, code, said in (("| head -1", "0", ""), ("> /dev/full", "1", "No space left on device")):
        written = f'{{ "$0" -m orchestrator table dump bank balances 2> said; echo $? > code; }} {taken}'
        console.script(
            "-c", f"import os, sys; os.execlp('sh', 'sh', '-c', {written!r}, sys.executable)", name="dump"
        ).wait(60)
        assert (console.folder / "code").read_text().strip() == code
        assert said in (console.folder / "said").read_text()
    out = console.here("table", "dump", "bank", "balances", "--out", "all.parquet")
    assert (out.code, out.out) == (0, "2501 pairs in all.parquet\n"), out
    import pyarrow.parquet as pq

    table = pq.read_table(console.folder / "all.parquet")
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == paid
    assert str(table.schema.field("value").type) == "int64"

    run.terminate()
    assert console.end(run) == 0
    rest = console.here("table", "dump", "bank", "balances", "--out", "all.jsonl")
    assert rest.code == 0 and "read from this machine's disk" in rest.err and "lacks" not in rest.err, rest
    lines = [json.loads(line) for line in (console.folder / "all.jsonl").read_text().splitlines()]
    assert {row["key"]: row["value"] for row in lines} == paid
    again = console.here("table", "scan", "bank", "balances", "--prefix", "k000", "--limit", "3")
    assert len(pairs(again)) == 3 and not list(console.folder.glob(".*part"))
    elsewhere = console.here("table", "dump", "bank", "balances", "--state-dir", "none")
    assert elsewhere.code == 3 and "has no state in" in elsewhere.err and elsewhere.out == ""
    for manifest in console.folder.rglob("balances/MANIFEST-*"):
        manifest.write_bytes(b"\xff" * 100)
    damaged = console.here("table", "dump", "bank", "balances")
    assert damaged.code == 3 and "cannot be read" in damaged.err and "no state" not in damaged.err, damaged


def test_keys_that_are_numbers_values_that_are_objects_and_what_a_table_keeps_for_itself(console: Console) -> None:
    console.app = "keyed"
    console.write("keyed.py", NUMBERS)
    console.run(*SOON)
    lines = [json.dumps({"key": n, "value": {"n": n, "é": [n]}, "timestamp_ms": 1_000}) for n in range(20)]
    lines += [json.dumps({"key": 99, "value": {}, "timestamp_ms": 3_700_000})]
    assert console.here("produce", "keyed:app", "given", stdin="\n".join(lines)).code == 0
    wanted = {**{n: {"n": n, "é": [n]} for n in range(20)}, 99: {}}
    console.until("all", lambda: pairs(console.here("table", "dump", "keyed", "latest")) == wanted)
    found = pairs(console.here("table", "scan", "keyed", "latest", "--from", "5", "--until", "8"))
    assert sorted(found) == [5, 6, 7]
    fading = pairs(console.here("table", "dump", "keyed", "fading"))
    home = {n for n in fading if n != 99}  # stream time is a task's: those beside 99 have expired
    assert 99 in fading and 0 < len(home) < 20 and all(value == "x" for value in fading.values())
    assert console.here("table", "dump", "keyed", "latest", "--out", "objects.parquet").code == 0
    import pyarrow.parquet as pq

    table = pq.read_table(console.folder / "objects.parquet")
    assert dict(zip(table["key"].to_pylist(), map(json.loads, table["value"].to_pylist()), strict=True)) == wanted
    windows = [json.loads(line) for line in console.here("table", "scan", "keyed", "hourly").out.splitlines()]
    assert {"key": 99, "start_ms": 3_600_000, "end_ms": 7_200_000, "value": 1} in windows
    assert all(row["start_ms"] == 0 for row in windows if row["key"] != 99)
    refused = console.here("table", "scan", "keyed", "latest", "--prefix", "1")
    assert refused.code == 2 and "--prefix is for text" in refused.err


GLOBAL = """
from collections.abc import Mapping

from orchestrator import App, Record, Sink

app = App("priced", partitions=1)
orders, priced = app.topic("orders", key=str, value=str), app.topic("priced", key=str, value=int)
rates = app.global_table(app.topic("rates", key=str, value=int))


@app.processor(orders, rates, priced)
def price(order: Record[str, str], rates: Mapping[str, int], priced: Sink[str, int]) -> None:
    priced.send(order.key, rates.get(order.value, 0))
"""


def test_a_global_table_is_named_as_one(console: Console) -> None:
    """It was no table at all, beside a `status` that listed it."""
    console.write("priced.py", GLOBAL)
    console.start("run", "priced:app", name="run")
    assert console.here("wait", "priced", *WAIT).code == 0
    for words in (("query", "priced", "rates", "eur"), ("table", "scan", "priced", "rates")):
        done = console.here(*words)
        assert done.code == 2 and "'rates' is a global table" in done.err, done
        assert "`orchestrator consume priced rates` prints" in done.err, done


def test_wrong_use(console: Console) -> None:
    run = console.bank().run(*SOON)
    for words, said in (
        (("dump", "bank", "nothing"), "has no table 'nothing'; it has balances"),
        (("dump", "bank", "balances", "--out", "x.txt"), "let it end with .jsonl"),
        (("dump", "bank", "balances", "--out", "no/x.jsonl"), "there is no folder no"),
        (("scan", "bank", "balances", "--from", "b", "--until", "a"), "--until is not after --from"),
        (("scan", "bank", "balances", "--prefix", "b", "--from", "a"), "exclude each other"),
        (("scan", "bank", "balances", "--limit", "0"), "not a whole number"),
        (("dump", "bnk", "balances"), "no log of application"),
    ):
        done = console.here("table", *words)
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1, done
    assert not list(console.folder.glob("*x.*"))
    wrong = console.write("wrong.secret", "")
    right, key = (console.folder / ".orchestrator/bank.db-bank.secret").read_text().split()
    wrong.write_text(f"{right} {'0' if key[0] != '0' else '1'}{key[1:]}\n")
    wrong.chmod(0o600)
    assert console.here("table", "dump", "bank", "balances", "--secret-file", str(wrong)).code in (2, 3)
    run.terminate()
    assert console.end(run) == 0
