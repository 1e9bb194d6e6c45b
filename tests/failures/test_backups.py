"""A log that was restored from an older copy is another history: state on disk that had gone further is restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import WAIT, Console
from tests.state.test_sqlite_file import without_a_row

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
    copied = console.here("log", "backup", "bank", "copy.db", "--log", "sqlite:.orchestrator/bank.db", "--json")
    assert copied.code == 0 and copied.json["bytes"] == (console.folder / "copy.db").stat().st_size, copied


def pay(console: Console, amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        console.pay(*((name, 1) for _ in range(amount)))


def balances(console: Console, names: str) -> dict[str, int]:
    return {name: int(console.balance(name) or 0) for name in names}


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


@pytest.mark.long
def test_a_bounce_keeps_what_is_on_disk(console: Console) -> None:
    for turn in range(3):
        console.run(*FAST)
        pay(console, dict.fromkeys("abc", 1))
        assert balances(console, "abc") == dict.fromkeys("abc", turn + 1)
        stop(console)
    assert "wiped" not in console.said("run")


def test_a_backup_replaces_nothing_and_says_what_it_cannot_copy(console: Console) -> None:
    console.run(*FAST)
    backup(console)
    assert (console.folder / "copy.db").stat().st_mode & 0o077 == 0
    (console.folder / "link.db").symlink_to("nowhere.db")
    for words, why, code in (
        (("bank", "copy.db"), "is there already", 2),
        (("bank", "link.db"), "is there already", 2),
        (("bank", "nowhere/copy.db"), "there is no folder nowhere", 2),
        (("bank", "/proc/copy.db"), "cannot be written", 1),
        (("nobody", "other.db"), "no log of application 'nobody'", 2),
        (("bank", "other.db", "--log", "kafka://127.0.0.1:1"), "is no embedded log", 2),
        (("bank", "other.db", "--log", "sqlite:bank.py"), "is not a log", 1),
    ):
        refused = console.here("log", "backup", *words)
        assert refused.code == code and refused.err.count("\n") == 1 and why in refused.err, refused
    assert not list(console.folder.glob("*other*")) and not list(console.folder.glob(".*part"))


@pytest.mark.long
def test_a_copy_is_run_beside_the_log_that_it_is_of(console: Console) -> None:
    """A question to the copy was answered by the group of the log, which `scale-down` would have scaled, and a run of the copy
    was refused as long as the other lasted."""
    console.run(*FAST)
    pay(console, {"a": 3})
    assert balances(console, "a") == {"a": 3}
    backup(console)
    (secret,) = (console.folder / ".orchestrator").glob("bank.db*secret")
    shutil.copy(secret, console.folder / secret.name.replace("bank.db", "copy.db"))
    copy = ("--log", "sqlite:copy.db")
    refused = console.here("status", "bank", *copy)
    assert refused.code == 3 and "has no coordinator" in refused.err, refused
    console.start("run", "bank:app", "--instances", "2", "--state-dir", "other", *copy, *FAST, name="copied")
    assert console.here("wait", "bank", "--instances", "2", *copy, *WAIT).code == 0, console.said("copied")
    pay(console, {"a": 1})
    assert balances(console, "a") == {"a": 4}
    console.until("the copy", lambda: console.here("query", "bank", "balances", "a", *copy).out == "3\n")
    assert len(console.here("status", "bank", "--json").json["instances"]) == 1


def test_a_backup_is_not_mixed_with_what_is_left_of_the_log_that_it_replaces(console: Console) -> None:
    """After a crash the newest commits lie beside the log (`-wal`): they were written over the backup that was put in its place,
    which undid the restore, or damaged it, without a word."""
    fleet = console.run(*FAST)
    pay(console, {"a": 3})
    assert balances(console, "a") == {"a": 3}
    backup(console)
    pay(console, {"a": 2})
    assert balances(console, "a") == {"a": 5}
    log = console.folder / ".orchestrator/bank.db"
    beside = [log.with_name(log.name + suffix) for suffix in ("-wal", "-shm")]
    left = [file.read_bytes() for file in beside]
    fleet.terminate()
    assert console.end(fleet) == 0
    for file, content in zip(beside, left, strict=True):  # as after a crash
        file.write_bytes(content)
    shutil.copy(console.folder / "copy.db", log)
    refused = console.here("run", "bank:app")
    assert refused.code == 1 and refused.err.count("\n") == 1 and "remove bank.db-wal and bank.db-shm" in refused.err, (
        refused
    )
    assert beside[0].read_bytes() == left[0], "nothing is lost before somebody says so"
    for file in beside:
        file.unlink()
    console.run(*FAST)
    assert balances(console, "a") == {"a": 3}


def test_a_log_that_was_cut_off_does_not_cost_the_state(console: Console) -> None:
    """It was taken for a new one, and the stores, the last copies of the tables, were wiped as those of another log."""
    console.run(*FAST)
    pay(console, dict.fromkeys("abcdef", 3))
    assert balances(console, "abcdef") == dict.fromkeys("abcdef", 3)
    stop(console)
    path = console.folder / ".orchestrator" / "bank.db"
    kept = path.read_bytes()
    path.write_bytes(b"")
    row = '{"key": "a", "value": {"account": "a", "amount": 3}}'
    for words in (("run", "bank:app"), ("produce", "bank:app", "payments"), ("topics", "create", "bank:app")):
        refused = console(*words, stdin=row)
        assert refused.code == 3 and refused.err.count("\n") == 1, refused
        assert f"the log {path} is empty" in refused.err and "restore a backup of it" in refused.err, refused
    path.write_bytes(kept)
    console.run(*FAST)
    assert balances(console, "abcdef") == dict.fromkeys("abcdef", 3)
    stop(console)


def test_a_check_of_a_log_says_what_is_damaged(console: Console) -> None:
    path = console.folder / ".orchestrator" / "bank.db"
    pay(console, dict.fromkeys("abcdef", 3))
    whole = console.here("log", "check", "bank")
    assert whole.code == 0 and whole.out == f"{path} is whole\n", whole
    without_a_row(path, "batches")
    found = console.here("log", "check", "bank", "--json")
    assert found.code == 1 and any("missing from index" in line for line in found.json["problems"]), found
    assert found.err.count("\n") == 1 and f"sqlite3 {path} reindex" in found.err, found
