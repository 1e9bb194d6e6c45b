"""State directories, logs and disks that fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.console import WAIT, Console
from tests.often import often
from tests.small_disk import small

pytestmark = pytest.mark.processes
__all__ = ["small"]
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms")


def one_line(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err and "defect" not in err


def pay_much(console: Console, *words: str, amount: int = 80_000) -> tuple[int, str]:
    row = json.dumps({"key": "ann", "value": {"account": "x" * 200, "amount": 1}}) + "\n"
    done = console.here("produce", "bank:app", "payments", *words, stdin=row * amount)
    return done.code, done.err


def test_a_state_directory_that_cannot_be_one(console: Console) -> None:
    console.write("file", "")
    done = console("run", "bank:app", "--state-dir", "file/state")
    assert done.code == 1 and one_line(done.err) and "--state-dir" in done.err, done


def test_a_log_that_cannot_be_made(console: Console) -> None:
    console.write("file", "")
    for words in (["run", "bank:app"], ["produce", "bank:app", "payments"]):
        done = console(*words, "--log", "sqlite:file/log.db")
        assert done.code == 2 and one_line(done.err) and "cannot be made" in done.err, done


def test_a_full_disk_under_the_log(console: Console, small: Path) -> None:
    """It ends with one line, and what was written before is there."""
    log = f"sqlite:{small}/bank.db"
    code, err = pay_much(console, "--log", log)
    assert code == 1 and one_line(err) and "space" in err, err
    kept = console.here("consume", "bank", "payments", "--log", log)
    assert kept.code == 0, kept
    rows = [json.loads(row) for row in kept.out.splitlines()]
    assert len(rows) % 1_000 == 0 and rows, "whole batches"


def fill(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    finally:
        os.close(descriptor)


def test_a_full_disk_under_a_running_group(console: Console, small: Path) -> None:
    """The disk of the log fills up while instances run: with space again everything is right."""
    log = f"sqlite:{small}/bank.db"
    fleet = console.run(*FAST, "--log", log, wait=False)
    assert console.here("wait", "bank", "--log", log).code == 0
    console.environment["ORCHESTRATOR_LOG"] = log
    console.pay(("ann", 5))
    assert console.balance("ann") == "5\n"
    filler = small / "filler"
    fill(filler)
    code, err = pay_much(console, amount=20_000)
    assert code == 1 and one_line(err) and "space" in err, err
    fleet.terminate()
    console.end(fleet)
    assert "Traceback" not in console.said("run")
    console.nothing_left()
    filler.unlink()
    console.run(*FAST)
    console.pay(("ann", 1))
    assert console.balance("ann") == "6\n"


def test_a_start_on_a_full_disk_names_the_folder(console: Console, small: Path) -> None:
    """It said that the answer cannot be written, of a terminal that could be, and named no folder."""
    fill(small / "filler")
    for words in ([], ["--name", "here"]):
        done = console.here("run", "bank:app", "--state-dir", str(small), *words)
        assert (done.code, done.out) == (1, "")
        assert one_line(done.err) and f"of {small}" in done.err and "--state-dir" in done.err, done


@pytest.mark.long
def test_a_full_disk_under_the_state(console: Console, small: Path) -> None:
    (small / "filler").write_bytes(b"x" * (4096 * 4070))
    console.run(*FAST, "--state-dir", str(small), wait=False)
    console.until("a word about space", lambda: "space" in console.said("run"))
    assert "Traceback" not in console.said("run")


def test_an_instance_that_comes_to_a_full_disk_waits_for_space(console: Console, small: Path) -> None:
    """The fleet stopped, though what ran went on."""
    fleet = console.run(*FAST, "--state-dir", str(small), instances=1)
    filler = small / "filler"
    fill(filler)
    assert console.here("scale-up", "bank", "--by", "1").code == 0
    console.until(
        "a line about it", lambda: "i2 has no space for its state; it is started again" in console.said("run")
    )
    console.pay(("ann", 5))
    assert console.balance("ann") == "5\n"
    filler.unlink()
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0, console.said("run")
    console.pay(("ann", 5))
    assert console.balance("ann") == "10\n" and "Traceback" not in console.said("run")
    stop(console, fleet)


def lines_but_the_first(console: Console) -> list[str]:
    return console.said("run").splitlines()[1:]


def run_with_files(console: Console, limits: str) -> None:
    console.bank()
    limited = (
        "import os, resource, sys; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {limits}); "
        "os.execl(sys.executable, sys.executable, '-m', 'orchestrator', 'run', 'bank:app')"
    )
    console.script("-c", limited, name="run")


def test_more_stores_than_the_soft_limit_of_open_files_allows(console: Console) -> None:
    """The processes of a fleet take what they are allowed; a shell and systemd give 1,024 of it."""
    run_with_files(console, "(64, hard)")
    assert console.here("wait", "bank", "--instances", "1", *WAIT).code == 0, console.said("run")
    console.pay(("ann", -5))
    assert console.balance("ann") == "-5\n"
    assert "WARNING" not in console.said("run") and "ERROR" not in console.said("run")


@pytest.mark.long
def test_more_stores_than_the_hard_limit_allows_wait_and_are_warned_of(console: Console) -> None:
    """Each of them was opened and given up as fast as the group could place it, some hundred lines a second."""
    run_with_files(console, "(64, 64)")
    warning = "warning: a worker has 8 stores in this fleet, and some 156 files open, more than the 64 that a process may have here"
    console.until("the warning", lambda: warning in console.said("run"))

    def times(task: str) -> list[datetime]:
        lines = [line for line in console.said("run").splitlines() if f" {task} ERROR " in line]
        assert all("its process has too many files open; raise the limit" in line for line in lines)
        return [datetime.fromisoformat(line[:23].replace(",", ".")) for line in lines]

    def twice() -> list[str]:
        return [task for task in (f"0_{number}" for number in range(8)) if len(times(task)) > 1]

    console.until("a task that finds none left twice", twice)
    for task in twice():
        first, second, *_ = times(task)
        assert second - first > timedelta(seconds=4), console.said("run")
    assert "Traceback" not in console.said("run")


@pytest.mark.parametrize("with_state", often((False, True), False), ids=["the log", "the log and the state"])
def test_a_log_that_is_deleted_under_a_running_fleet(console: Console, with_state: bool) -> None:
    """One line for all of its processes, and then what it says: the fleet stops."""
    fleet = console.run(*FAST, instances=2)
    console.pay(("ann", 5))
    home = console.folder / ".orchestrator"
    if with_state:
        (home / "state").rename(home / "gone")
    for path in home.glob("bank.db*"):
        path.unlink()
    assert console.end(fleet) == 1
    [line] = lines_but_the_first(console)
    what = f"error: the log {home / 'bank.db'} was deleted or replaced while it was in use, or its -wal or -shm was; "
    assert line == what + "the fleet stops: put it back, or run it again"
    console.nothing_left()


@pytest.mark.parametrize("ending", often(("-shm", "-wal"), "-shm"))
def test_what_lies_beside_a_log_is_deleted_under_a_running_fleet(console: Console, ending: str) -> None:
    """No process writes to a log that others see another index of: the fleet stops, and what was written is there."""
    home = console.folder / ".orchestrator"
    home.mkdir()
    (home / "elsewhere.db").touch()
    (home / "bank.db").symlink_to(home / "elsewhere.db")
    fleet = console.run(*FAST, instances=2)
    console.pay(*[("ann", 1)] * 20)
    console.until("what ann has", lambda: console.here("query", "bank", "balances", "ann").out == "20\n")
    (home / f"elsewhere.db{ending}").unlink()
    row = json.dumps({"key": "ann", "value": {"account": "ann", "amount": 1}}) + "\n"
    done = console.here("produce", "bank:app", "payments", stdin=row * 20)
    assert done.code == 0 or "was deleted" in done.err, done
    assert console.end(fleet) == 1
    [line] = lines_but_the_first(console)
    assert "the fleet stops: put it back, or run it again" in line
    fleet = console.run(*FAST, instances=2)
    expected = 20 if done.code else 40
    console.until(f"{expected}", lambda: console.here("query", "bank", "balances", "ann").out == f"{expected}\n")
    assert console.here("log", "check", "bank").code == 0
    stop(console, fleet)


def test_state_that_is_deleted_under_a_running_fleet(console: Console) -> None:
    """One line for all instances and tasks; what they held is restored, and the fleet still holds its folder against others."""
    fleet = console.run(*FAST, "--standbys", "1", instances=2)
    payments = [(name, 5) for name in ("ann", "bob", "cyd", "dee")]
    console.pay(*payments)
    state = console.folder / ".orchestrator/state"
    state.rename(console.folder / "gone")
    console.until("a line about it", lambda: lines_but_the_first(console))
    console.pay(*payments)
    for name, _ in payments:
        console.until(
            f"what {name} has", lambda name=name: console.here("query", "bank", "balances", name).out == "10\n"
        )
    console.until("stores", lambda: len(list(state.glob("bank/*/0_*/balances/CURRENT"))) == 16)
    assert (state / "bank/i1/journal.jsonl").exists()
    refused = console("run", "bank:app")
    assert refused.code == 3 and f"process {fleet.pid}" in refused.err, refused
    fleet.terminate()
    assert console.end(fleet) == 0
    what = f"deleted while in use: {state / 'bank'}; the instances go on, and restore from the log what they held"
    assert lines_but_the_first(console) == [what]


def stop(console: Console, fleet: subprocess.Popen[bytes]) -> None:
    fleet.terminate()
    assert console.end(fleet) == 0


def balances(console: Console) -> list[str]:
    return [console.balance(key).strip() for key in ("ann", "bob", "cyd")]


def test_state_that_is_damaged_gone_or_of_another_log(console: Console) -> None:
    """Five lives: what is on disk costs a restore and a word, never an answer."""
    fleet = console.run(*FAST)
    console.pay(("ann", 5), ("bob", 7), ("cyd", 9))
    assert balances(console) == ["5", "7", "9"]
    stop(console, fleet)
    damaged = 0
    for path in (console.folder / ".orchestrator/state/bank/i1").rglob("*"):
        if path.suffix == ".sst" or path.name.startswith("MANIFEST") or path.name == "CURRENT":
            path.write_bytes(b"this is not what it was" * 3)
            damaged += 1
    assert damaged
    config = console.folder / ".orchestrator/state/bank/i1/0_0/balances/rocksdict-config.json"
    config.unlink()
    config.mkdir()
    fleet = console.run(*FAST)
    assert "cannot be read" in console.said("run") and "it is wiped and restored" in console.said("run")
    assert balances(console) == ["5", "7", "9"]
    stop(console, fleet)
    rotten = list((console.folder / ".orchestrator/state/bank/i1").rglob("*.sst"))
    for path in rotten:  # a store that can be opened, and not read: what is wrong is a block, and not its index
        path.write_bytes(b"not what was there" + path.read_bytes()[18:])
    assert rotten
    before = len(console.said("run"))
    fleet = console.run(*FAST)
    assert "it is wiped and restored" in console.said("run")[before:] and "Traceback" not in console.said("run")
    assert balances(console) == ["5", "7", "9"]
    stop(console, fleet)
    shutil.rmtree(console.folder / ".orchestrator/state")
    fleet = console.run(*FAST)
    assert balances(console) == ["5", "7", "9"]
    stop(console, fleet)
    for path in (console.folder / ".orchestrator").glob("bank.db*"):
        path.unlink()
    before = len(console.said("run"))
    console.run(*FAST)
    console.pay(("ann", 1))
    assert balances(console) == ["1", "", ""], "a new log has a new id: what lies on disk must not be counted in"
    assert "it is wiped and restored" in console.said("run")[before:]


@pytest.mark.long
def test_what_lies_where_a_store_belongs_is_named_and_the_task_goes_on_once_it_is_moved_away(console: Console) -> None:
    """A file there had a line, again and again, that the task is restored from the log; a folder called LOCK had none."""
    fleet = console.run(*FAST)
    console.pay(("ann", 5), ("bob", 7), ("cyd", 9))
    assert balances(console) == ["5", "7", "9"]
    stop(console, fleet)
    in_the_way = []
    for table in sorted((console.folder / ".orchestrator/state/bank/i1").glob("*/balances"))[:4]:
        shutil.rmtree(table)
        table.write_text("") if len(in_the_way) % 2 else (table / "LOCK").mkdir(parents=True)
        in_the_way.append(table)
    before = len(console.said("run"))
    fleet = console.start("run", "bank:app", *FAST, name="run")
    for table in in_the_way:
        console.until(f"a line on {table}", lambda table=table: str(table) in console.said("run")[before:])
    said = console.said("run")[before:]
    assert said.count("it is tried again") >= 4 and "restored from the log" not in said and "Traceback" not in said, (
        said
    )
    for table in in_the_way:
        table.rename(table.with_name("away"))
    console.until("all balances", lambda: balances(console) == ["5", "7", "9"])
    stop(console, fleet)
