"""A log that was restored from an older copy is another history: state on disk that had gone further is restored."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path).bank()
    yield made
    made.close()


def stop(console: Console) -> None:
    fleet = console._background[-1]
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()


def backup(console: Console) -> None:
    log = console.folder / ".orchestrator/bank.db"
    with closing(sqlite3.connect(log)) as source, closing(sqlite3.connect(console.folder / "copy.db")) as target:
        source.backup(target)


def pay(console: Console, amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        console.pay(*((name, 1) for _ in range(amount)))


def balances(console: Console, names: str) -> dict[str, int]:
    return {name: int(console.here("query", "bank", "balances", name).out or 0) for name in names}


def test_tables_are_those_of_the_restored_log(console: Console) -> None:
    console.run(*FAST)
    pay(console, dict.fromkeys("abcdef", 3))
    assert balances(console, "abcdef") == dict.fromkeys("abcdef", 3)
    stop(console)
    backup(console)
    console.run(*FAST)
    pay(console, dict.fromkeys("abcdef", 2))
    assert balances(console, "abcdef") == dict.fromkeys("abcdef", 5)
    stop(console)
    for suffix in ("", "-wal", "-shm"):
        (console.folder / f".orchestrator/bank.db{suffix}").unlink(missing_ok=True)
    shutil.copy(console.folder / "copy.db", console.folder / ".orchestrator/bank.db")
    shutil.move(console.folder / ".orchestrator/state", console.folder / "state")
    console.run(*FAST)  # with an empty disk: the restored log goes on, beyond where the old state stands
    pay(console, dict.fromkeys("abcdef", 4))
    assert balances(console, "abcdef") == dict.fromkeys("abcdef", 7)
    stop(console)
    shutil.rmtree(console.folder / ".orchestrator/state")
    shutil.move(console.folder / "state", console.folder / ".orchestrator/state")
    console.run(*FAST)
    pay(console, {"a": 1})
    assert balances(console, "abcdef") == {**dict.fromkeys("abcdef", 7), "a": 8}
    assert "the log was restored from an older copy" in console.said("run")
    last = {}
    for row in map(json.loads, console.here("consume", "bank", "bank-balances-changelog").out.splitlines()):
        last[row["key"]] = row["value"]
    assert last == {**dict.fromkeys("abcdef", 7), "a": 8}


def test_a_bounce_keeps_what_is_on_disk(console: Console) -> None:
    for turn in range(3):
        console.run(*FAST)
        pay(console, dict.fromkeys("abc", 1))
        assert balances(console, "abc") == dict.fromkeys("abc", turn + 1)
        stop(console)
    assert "wiped" not in console.said("run")
