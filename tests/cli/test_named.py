"""`run --name`: one instance that joins a group by its name, or begins it, beside fleets and others of its machine."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
from contextlib import closing
from typing import Any

import pytest

from orchestrator.clocks import wall_ms
from tests.cli.console import WAIT, Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "8s", "--heartbeat", "200ms", "--disconnect-grace", "300ms")


def join(console: Console, name: str, *words: str) -> subprocess.Popen[bytes]:
    return console.start("run", "bank:app", "--name", name, *FAST, *words, name="run")


def stable(console: Console, instances: int) -> Any:
    done = console.here("wait", "bank", "--instances", str(instances), *WAIT)
    assert done.code == 0, (done, console.said("run"))
    return console.here("status", "bank", "--json").json


def tasks_of(status: Any, name: str) -> dict[str, int]:
    return {task["id"]: task["epoch"] for task in status["tasks"] if task["active"] == name}


def test_what_ran_it_is_killed_and_the_other_takes_its_tasks_at_once(console: Console) -> None:
    """As where any of its processes is: it may not come back, so its tasks do not wait for the session timeout."""
    words = ("--standbys", "1", "--session-timeout", "10m", "--rejoin-grace", "10m")
    left = join(console, "left", *words)
    stable(console, 1)
    right = join(console, "right", *words)
    stable(console, 2)
    console.pay(("ann", 7))
    assert console.balance("ann") == "7\n"
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0
    right.kill()
    console.until("them to go over", lambda: len(tasks_of(console.here("status", "bank", "--json").json, "left")) == 8)
    console.pay(("ann", 1))
    assert console.balance("ann") == "8\n"
    left.terminate()
    assert console.end(left) == 0, console.said("run")
    console.nothing_left()


def test_they_begin_a_group_and_a_bounce_keeps_tasks(console: Console) -> None:
    left = join(console, "left")
    stable(console, 1)
    right = join(console, "right")
    stable(console, 2)
    console.pay(("ann", 7))
    before = stable(console, 2)
    assert [row["id"] for row in before["instances"]] == ["left", "right"]
    assert len(tasks_of(before, "left")) == len(tasks_of(before, "right")) == 4
    right.terminate()
    assert console.end(right) == 0
    away = console.here("status", "bank", "--json").json
    assert tasks_of(away, "left") == tasks_of(before, "left"), "those of the other are kept for it"
    waited = console.here("wait", "bank", "--instances", "2", "--timeout", "500ms")
    assert waited.code == 4 and "1 instance of 2 is there" in waited.err, "the next one would be bounced beside it"
    right = join(console, "right")
    after = stable(console, 2)
    assert tasks_of(after, "left") == tasks_of(before, "left"), "the other never paused"
    assert set(tasks_of(after, "right")) == set(tasks_of(before, "right"))
    assert console.balance("ann") == "7\n"
    for process in (left, right):
        process.terminate()
        assert console.end(process) == 0, console.said("run")
    assert "instance left, 8 tasks, embedded log" in console.said("run")
    with closing(sqlite3.connect(console.folder / ".orchestrator/bank.db")) as db:
        assert not db.execute("select key from notes where kind = 'named'").fetchall(), "other machines look there"


@pytest.mark.long
def test_a_name_is_of_one_process(console: Console) -> None:
    first = join(console, "i7")
    stable(console, 1)
    for words in ((), ("--state-dir", "elsewhere")):
        again = console("run", "bank:app", "--name", "i7", *words)
        assert (again.code, again.out) == (3, ""), again
        assert again.err.startswith("error: instance 'i7' of 'bank' runs already as process ")
        assert str(first.pid) in again.err and "another --name" in again.err and again.err.count("\n") == 1
    first.kill()
    first.wait()
    console.nothing_left()  # its instance has lost its parent
    again = join(console, "i7")
    stable(console, 1)
    again.terminate()
    assert console.end(again) == 0, console.said("run")


def test_beside_a_fleet(console: Console) -> None:
    """Names of the fleet are taken, and the fleet takes no name that is in use."""
    fleet = console.run(*FAST)
    refused = console("run", "bank:app", "--name", "i1")
    assert refused.code == 3 and f"in the fleet of process {fleet.pid}" in refused.err, refused
    named = join(console, "i2")
    stable(console, 2)
    grown = console.here("scale-up", "bank", "--by", "1", "--wait", "--json")
    assert (grown.code, grown.json["added"]) == (0, ["i3"]), grown
    left = console.here("scale-down", "bank", "--instances", "i2", "--wait", "--json")
    assert (left.code, left.json["outcome"]) == (0, "done"), left
    assert console.end(named) == 0
    status = stable(console, 2)
    assert [row["id"] for row in status["instances"]] == ["i1", "i3"]
    fleet.terminate()
    assert console.end(fleet) == 0, console.said("run")


def test_two_that_start_together(console: Console) -> None:
    """Their state lies apart: nothing but the log can tell."""
    runs = [join(console, "twin", "--state-dir", side) for side in ("one", "two")]
    console.until("one to be refused", lambda: any(run.poll() is not None for run in runs))
    [over] = [run for run in runs if run.poll() is not None]
    assert over.returncode == 3, console.said("run")
    stable(console, 1)


@pytest.mark.long
def test_with_on_stop_leave_it_hands_over_and_the_last_one_just_goes(console: Console) -> None:
    left = join(console, "left", "--on-stop", "leave")
    stable(console, 1)
    right = join(
        console, "right", "--on-stop", "leave", "--after-leave", "park"
    )  # it is asked to end: it does not park
    assert len(tasks_of(stable(console, 2), "right")) == 4
    right.terminate()
    assert console.end(right) == 0
    status = console.here("status", "bank", "--json").json
    assert [row["id"] for row in status["instances"]] == ["left"], "a bounce would be waited for"
    assert len(tasks_of(stable(console, 1), "left")) == 8
    left.send_signal(signal.SIGINT)
    assert console.end(left) == 130
    console.nothing_left()


@pytest.mark.long
def test_zones_and_capacities_of_their_own(console: Console) -> None:
    """The large one runs more, and standbys are in the other zone than their task."""
    zones = {"east1": "east", "east2": "east", "west1": "west", "west2": "west"}
    for name, zone in zones.items():
        size = "3" if name == "east1" else "1"
        join(console, name, "--zone", zone, "--standbys", "1", "--capacity", size, "--initial-delay", "2s")
    stable(console, 4)

    def spread() -> list[tuple[str, str]]:
        tasks = console.here("status", "bank", "--json").json["tasks"]
        return [(zones[task["active"]], zones[copy["instance"]]) for task in tasks for copy in task["standbys"]]

    def loads() -> dict[str, float]:
        return {row["id"]: row["load"] for row in stable(console, 4)["instances"]}

    # Whoever starts too late for the initial delay is given its share by moves.
    console.until(
        "all standbys in the other zone", lambda: len(found := spread()) == 8 and all(a != b for a, b in found)
    )
    console.until(
        "a load by capacity",
        lambda: (found := loads())["east1"] >= 4 and max(load for name, load in found.items() if name != "east1") <= 2,
    )


def test_the_name_of_the_host(console: Console) -> None:
    console.environment["ORCHESTRATOR_NAME"] = "%h"
    running = console.start("run", "bank:app", *FAST, name="run")
    host = socket.gethostname().partition(".")[0]
    assert [row["id"] for row in stable(console, 1)["instances"]] == [host]
    del console.environment["ORCHESTRATOR_NAME"]
    refused = console("run", "bank:app", "--name")
    assert refused.code == 3 and f"instance '{host}'" in refused.err
    running.terminate()
    assert console.end(running) == 0


@pytest.mark.long
def test_a_note_of_another_machine(console: Console) -> None:
    """What was noted there a moment ago may not have joined yet; of an old note the coordinator would know."""
    first = join(console, "i7")
    stable(console, 1)
    first.terminate()
    assert console.end(first) == 0

    def note(at_ms: int) -> None:
        facts = {"pid": 1, "started": "1", "host": "elsewhere", "at_ms": at_ms, "state_dir": "/x", "instances": ["i7"]}
        with closing(sqlite3.connect(console.folder / ".orchestrator/bank.db")) as db, db:
            row = ("bank", "named", "i7", json.dumps(facts).encode())
            db.execute("insert or replace into notes (application, kind, key, value) values (?, ?, ?, ?)", row)

    note(wall_ms())
    refused = console("run", "bank:app", "--name", "i7")
    assert refused.code == 3 and "runs already on elsewhere" in refused.err, refused
    note(1)
    again = join(console, "i7")
    stable(console, 1)
    again.terminate()
    assert console.end(again) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "a", "--instances", "2"], "exclude each other"),
        (["--name", "a", "--on", "spark"], "one process of this machine"),
        (["--name", "a.b"], "no name of an instance"),
        (["--name", "../x"], "no name of an instance"),
        (["--name", ""], "--name has an empty text"),
    ],
)
def test_wrong_names(console: Console, words: list[str], said: str) -> None:
    done = console.here("run", "bank:app", *words)
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1, done
