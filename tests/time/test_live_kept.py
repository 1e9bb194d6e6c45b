"""Windows of each kind, sessions, timers, versions and what a join keeps: a snapshot of a running group has them, instances that
have nothing restore them from it and go on with the Driver's answer, and `verify` and `audit` see one that is wrong."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import Driver
from pipeline.definitions.describe import describe
from pipeline.spark.snapshotting import take
from pipeline.spark.verifying import Stores, Wanted, audit, verify
from pipeline.time.stored_form import StoredForm
from state.log.protocol import NewRecord
from state.log.sqlite import open_sqlite
from tests.cli.console import Console, console_of
from tests.time import kept
from workers.commands.consume import read_all
from workers.connection.credentials import credentials_of
from workers.fleet.client import Client

pytestmark = [pytest.mark.processes, pytest.mark.spark]
APP = "tests.time.kept:app"
ROOT = Path(__file__).resolve().parent.parent.parent
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms", "--snapshots", "snapshots")
TABLES = ("hourly", "rolling", "near", "visits", "silent", "rates", "match-join")
Beat = tuple[str, str, int, int]


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    monkeypatch.chdir(ROOT)
    with console_of(kept, tmp_path / "place") as found:
        yield found


def history(count: int, seed: int) -> list[Beat]:
    chance = random.Random(seed)
    topics = ["beats", "beats", "ships", "rates"]
    drawn = [(chance.choice(topics), f"k{chance.randrange(6)}", n, chance.randrange(count * 3)) for n in range(count)]
    return sorted(drawn, key=lambda beat: beat[3])


def produce(console: Console, records: list[Beat]) -> None:
    for topic in ("beats", "ships", "rates"):
        rows = [{"key": key, "value": value, "timestamp_ms": at} for of, key, value, at in records if of == topic]
        done = console.here("produce", "kept:app", topic, stdin="\n".join(map(json.dumps, rows)))
        assert done.code == 0, done


def rows(console: Console, *words: str) -> list[Any]:
    done = console.here(*words)
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


def sent(console: Console) -> list[tuple[str, str]]:
    return sorted((row["key"], row["value"]) for row in rows(console, "consume", "kept", "out"))


def kept_rows(console: Console, table: str) -> dict[Any, Any]:
    dumped = rows(console, "table", "dump", "kept", table)
    return {(r["key"], r["start_ms"], r["end_ms"]) if "start_ms" in r else r["key"]: r["value"] for r in dumped}


def consumed(console: Console, table: str) -> dict[Any, Any]:
    """The last row of each key and window in the changelog; a session that grew has another end."""
    last: dict[Any, Any] = {}
    for row in rows(console, "consume", "kept", f"kept-{table}-changelog"):
        last[row["key"], row.get("start_ms")] = row
    found = [row for row in last.values() if row["value"] is not None]
    return {(r["key"], r["start_ms"], r["end_ms"]) if "start_ms" in r else r["key"]: r["value"] for r in found}


def of_driver(records: list[Beat]) -> tuple[list[tuple[str, str]], dict[str, dict[Any, Any]]]:
    with Driver(kept.app) as driver:
        with driver.together():
            for topic, key, value, at_ms in records:
                driver.send(kept.app.topics[topic], key, value, timestamp_ms=at_ms)
        tables: dict[str, dict[Any, Any]] = {}
        for table in (kept.hourly, kept.rolling, kept.near, kept.visits):
            windows: dict[Any, Any] = driver.table(table)  # type: ignore[call-overload]
            tables[table.name] = {(key, *window): value for (key, window), value in windows.items()}
        tables["silent"] = dict(driver.table(kept.silent))
        tables["rates"] = dict(driver.table(kept.rate_of))
        return sorted(driver.items(kept.out)), tables


async def forged(url: Path) -> None:
    """The last row of each table's changelog, or entry of the join's, is written once more with another value."""
    log = await open_sqlite(url, create=False)
    for table in TABLES:
        found = [(where, record) for where, record in await read_all(log, f"kept-{table}-changelog") if record.value]
        if table != "match-join":
            form = StoredForm(describe(kept.app, kept.app.topology())["tables"][table])
            found = [(where, record) for where, record in found if form.row(record.key, record.value) is not None]
        where, record = found[-1]
        other = record.value[:-1] + bytes([record.value[-1] ^ 1])
        await log.append({where: [NewRecord(record.key, other, record.timestamp_ms)]})
    await log.close()


@pytest.mark.long
@pytest.mark.parametrize("how", ["audit", "verify"])
def test_a_snapshot_restores_them_and_one_that_is_wrong_is_seen(how: str, console: Console, spark: Any) -> None:
    records = history(300, 5)
    half = len(records) // 2
    wanted, _ = of_driver(records[:half])
    produce(console, records[:half])
    fleet = console.run(*FAST)
    console.until("the first half", lambda: len(sent(console)) >= len(wanted))
    path = console.folder / ".orchestrator/kept.db"
    url = f"sqlite:{path}"
    taken = asyncio.run(take("kept", url, console.folder / "snapshots", session=spark))
    assert taken["tasks"] == 2
    fleet.terminate()
    assert console.end(fleet) == 0
    shutil.rmtree(console.folder / ".orchestrator/state")

    produce(console, records[half:])
    fleet = console.run(*FAST)
    wanted, tables = of_driver(records)
    console.until("the end", lambda: len(sent(console)) >= len(wanted))
    assert sent(console) == wanted
    for name, expected in tables.items():
        assert kept_rows(console, name) == expected, name
        assert consumed(console, name) == expected, name
    key, rate = next(iter(tables["rates"].items()))
    assert rows(console, "query", "kept", "rates", key) == [rate]
    for name in ("near", "visits"):
        (key, start_ms, end_ms), value = next(iter(tables[name].items()))
        [*_, first] = rows(console, "query", "kept", name, key, "--until", f"{start_ms + 1}")
        assert (first["start_ms"], first["end_ms"], first["value"]) == (start_ms, end_ms, value), name
    [journal] = (console.folder / ".orchestrator/state").rglob("journal.jsonl")
    begun = [json.loads(row) for row in journal.read_text().splitlines()]
    restored = [row["how"] for row in begun if row["what"] == "started" and row["source"] == "snapshot"]
    assert restored and all(taken["snapshot"] in how[table] for how in restored for table in TABLES)

    def client(log: Any) -> Client:
        return Client(log, "kept", lambda: credentials_of("kept", url), url)

    fleet.terminate()
    assert console.end(fleet) == 0
    asyncio.run(forged(path))
    if how == "verify":
        checks = asyncio.run(verify(APP, url, say=print, session=spark))
    else:
        look = Wanted(stores=Stores(client, console.folder / ".orchestrator/state/kept"), limit=1)
        checks = asyncio.run(audit(APP, url, look, say=print, session=spark))["checks"]
        compared = [check["check"] for check in checks if check["ok"] and check["expected"] == check["found"]]
        assert all(f"stores of {table}: every key of 2" in compared for table in TABLES)
    wrong = {check["check"]: check for check in checks if not check["ok"]}
    assert sorted(wrong) == sorted(f"table {table}: every key" for table in TABLES)
    for table in TABLES:
        check = wrong[f"table {table}: every key"]
        one = check["example"] if how == "verify" else check["differences"][0]
        where = (one["key"], one["start_ms"], one["end_ms"]) if "start_ms" in one else one.get("key")
        expected = one["wanted" if how == "verify" else "expected"]
        assert check["differ"] == 1 and expected != one["found"], check
        assert "entry" in one if table == "match-join" else tables[table][where] == expected, check
