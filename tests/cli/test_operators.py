"""What operators do at one moment, or one after the other while something runs: each gets what was asked for, once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.values.partitioner import partition_of
from tests.cli import waiting
from tests.cli.console import WAIT, Console, console_of
from workers.commands import on_their_way, scale_up
from workers.connection import asking
from workers.fleet import restarts

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_fleet_has_what_it_was_started_with_beside_a_scale_down_of_the_one_before(tmp_path: Path) -> None:
    """The scale-down is in the log: the next fleet lost an instance to it, for good and without a word."""
    with console_of(waiting, tmp_path) as console:
        fleet = console.run(instances=2)
        (tmp_path / "hold").touch()
        rows = "\n".join(f'{{"key": "k{n}", "value": {n}}}' for n in range(20))
        assert console.here("produce", "waiting:app", "source", stdin=rows).code == 0
        console.until("a call that lasts", lambda: (tmp_path / "holds").exists())
        assert console.here("scale-down", "waiting", "--to", "1").code == 0
        for _ in range(2):
            fleet.terminate()
        console.end(fleet)
        (tmp_path / "hold").unlink()
        console.nothing_left()
        console.run(instances=2)
        assert console.here("wait", "waiting", "--instances", "2", *WAIT).code == 0
        instances = console.here("status", "waiting", "--json").json["instances"]
        assert [one["state"] for one in instances] == ["running", "running"]


@pytest.mark.long
def test_of_two_operators_that_want_as_many_both_get_them(console: Console) -> None:
    """Two `scale-up --to 3` at one moment made five."""
    console.run()
    both = [console.start("scale-up", "bank", "--to", "3", "--wait", name=f"up{n}") for n in (1, 2)]
    assert [console.end(one) for one in both] == [0, 0], console.said("up1") + console.said("up2")
    instances = console.here("status", "bank", "--json").json["instances"]
    assert len(instances) == 3, console.said("up1") + console.said("up2")
    both = [console.start("scale-up", "bank", "--by", "1", "--wait", name=f"by{n}") for n in (1, 2)]
    assert [console.end(one) for one in both] == [0, 0], console.said("by1") + console.said("by2")
    assert len(console.here("status", "bank", "--json").json["instances"]) == 5


@pytest.mark.long
def test_a_share_is_of_what_was_started_too(console: Console) -> None:
    """Behind a `scale-up` that did not wait, half of four was one of two, and the new ones joined all the same."""
    console.run(instances=2)
    assert console.here("scale-up", "bank", "--to", "4").code == 0
    done = console.here("scale-down", "bank", "--to", "50%", "--wait", "--json")
    assert (done.code, len(done.json["leaving"])) == (0, 2), done
    assert len(console.here("status", "bank", "--json").json["instances"]) == 2


def test_instances_that_do_not_come_are_named(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scale-up --wait` waited in silence, and a share left them out without a sign."""
    console.run()
    for place in (scale_up, on_their_way):
        monkeypatch.setattr(place, "JOINS_WITHIN_S", 0.5)
    hold = slow_to_begin(console)
    done = console.here("scale-up", "bank", "--by", "1", "--wait", "--timeout", "3s")
    assert done.code == 4 and "waiting: 1 instance that was started has not joined yet (i2)" in done.err, done
    done = console.here("scale-down", "bank", "--to", "50%", "--plan")
    assert "not counted: 1 instance that was started has not joined yet (i2)" in done.err, done
    hold.unlink()
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0


def slow_to_begin(console: Console) -> Path:
    """Instances that start from now on wait for as long as there is this file."""
    app, hold = console.folder / "bank.py", console.write("hold", "")
    app.write_text("import os, time\nwhile os.path.exists('hold'):\n    time.sleep(0.05)\n" + app.read_text())
    return hold


def test_a_change_that_was_not_answered_may_yet_be_made(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator waits for a log that is locked. The command ended with 3 and the advice to start `run`, and the
    change was made all the same."""
    monkeypatch.setattr(asking, "ASK_S", 1.0)
    console.run()
    with closing(sqlite3.connect(console.folder / ".orchestrator/bank.db", isolation_level=None)) as held:
        held.execute("begin immediate")
        done = console.here("settings", "set", "bank", "balancing-factor=2")
        assert done.code == 4 and "did not answer within 1 s; it may do it yet" in done.err, done
        held.execute("rollback")

    def is_set() -> bool:
        return bool(console.here("settings", "show", "bank", "--json").json["settings"]["balancing-factor"] == "2")

    console.until("the change", is_set)


def test_the_longest_pause_is_one_of_all_hand_overs(tmp_path: Path) -> None:
    """It was answered when the last leaver had gone, before the new owner, which is in a call here, had said when it began."""
    with console_of(waiting, tmp_path) as console:
        console.environment["STATELESS"] = "yes"
        console.run(instances=2)
        before = console.here("status", "waiting", "--json").json
        stays = before["coordinator"]["instance"]  # which counts the hand-overs
        [leaver] = [one["id"] for one in before["instances"] if one["id"] != stays]
        staying = {int(task["id"][2:]) for task in before["tasks"] if task["active"] == stays}
        key = next(f"k{n}" for n in range(100) if partition_of(f"k{n}".encode(), 4) in staying)
        (tmp_path / "hold").touch()
        row = f'{{"key": "{key}", "value": 1}}'
        assert console.here("produce", "waiting:app", "source", stdin=row).code == 0
        console.until("a call that lasts", lambda: (tmp_path / "holds").exists())
        words = ("scale-down", "waiting", "--instances", leaver, "--wait", "--json")
        leaving = console.start(*words, name="leave")
        alone = itertools.count()  # looks at a group of one: the command has looked as well

        def has_looked() -> bool:
            instances = console.here("status", "waiting", "--json").json["instances"]
            return leaving.poll() is not None or (len(instances) == 1 and next(alone) > 10)

        console.until("its last look", has_looked)
        (tmp_path / "hold").unlink()
        assert console.end(leaving) == 0
        done = json.loads((tmp_path / "leave.out").read_text())
        assert (done["moved"], done["hand_overs"]["count"]) == (2, 2)


@pytest.mark.long
def test_a_module_that_is_being_replaced_ends_no_fleet(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new instance could not import it, and the two that ran were stopped with it."""
    monkeypatch.setattr(scale_up, "JOINS_WITHIN_S", 0.5)
    fleet = console.run(instances=2)
    settled = time.monotonic() + restarts.SETTLED_S
    console.until("both have been there for a while", lambda: time.monotonic() > settled)
    module = console.folder / "bank.py"
    whole = module.read_text()
    module.write_text(whole + "\nx = (\n")
    done = console.here("scale-up", "bank", "--by", "1", "--wait", "--timeout", "3s")
    assert done.code == 4 and "has not joined yet (i3): what `orchestrator run` prints says why" in done.err, done
    os.kill(console("status", "bank", "--json").json["instances"][1]["pid"], signal.SIGKILL)
    console.until(
        "i2 is tried again", lambda: "i2 failed, and others go on; it is started again" in console.said("run")
    )
    assert "i3 failed, and others go on" in console.said("run") and fleet.poll() is None
    module.write_text(whole)
    assert console.here("wait", "bank", "--instances", "3", *WAIT).code == 0


def test_a_module_that_is_another_application_by_now_is_refused_by_what_runs(console: Console) -> None:
    """A worker that was started again began that application anew, with the same inputs: outputs came twice."""
    fleet = console.run()
    console.pay(("ann", -1))
    console.until("the payment", lambda: console.here("query", "bank", "balances", "ann").out == "-1\n")
    module = console.folder / "bank.py"
    module.write_text(module.read_text().replace('App("bank"', 'App("bink"'))
    os.kill(console("status", "bank", "--json").json["instances"][0]["pid"], signal.SIGKILL)
    assert fleet.wait(30) == 2
    assert "bank:app is application 'bink' by now, and i1 is an instance of 'bank'" in console.said("run")
    assert console.here("consume", "bank", "alerts").out.count("overdrawn") == 1
