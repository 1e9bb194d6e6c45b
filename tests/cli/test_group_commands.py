"""Commands against one running group: JSON shapes, exit codes, plans, deadlines, interrupts. The group is shared by the
tests of this module, each of which leaves it stable with the number of instances that it finds there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.coordinator.requests import StatusRequest
from orchestrator.errors import TimedOut
from tests.cli.console import WAIT, Console, Done
from workers.commands.scale_down import counts
from workers.commands.scale_up import wait_stable
from workers.fleet.client import client_of

pytestmark = pytest.mark.processes
HAND_OVERS = {"count", "p50_ms", "p99_ms", "max_ms"}
DOWN = {"schema", "plan", "from", "to", "leaving", "staying", "moves", "outcome", "elapsed_s", "hand_overs"}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    console = Console(tmp_path_factory.mktemp("group") / "place").bank()
    console.run("--session-timeout", "60s", "--heartbeat", "300ms", instances=3)
    console.pay(("ann", 7), ("bob", -2))
    yield console
    console.close()


def stable(group: Console, instances: int) -> Any:
    done = group.here("wait", "bank", "--instances", str(instances), *WAIT)
    assert done.code == 0, (done, group.said("run"))
    status = group.here("status", "bank", "--json").json
    assert len(status["instances"]) == instances
    return status


def grow(group: Console, to: int) -> None:
    assert group.here("scale-up", "bank", "--to", str(to), "--wait").code == 0
    stable(group, to)


def test_status(group: Console) -> None:
    found = stable(group, 3)
    assert found.keys() >= {
        *(
            "schema",
            "application",
            "log",
            "generation",
            "protocol",
            "guarantee",
            "coordinator",
            "stable",
            "scale",
            "instances",
        ),
        *("tasks", "hand_overs"),
    }
    assert (found["schema"], found["application"], found["protocol"], found["stable"]) == (1, "bank", "learner", True)
    assert found["scale"] is None
    for instance in found["instances"]:
        assert instance.keys() >= {"id", "state", "workers", "load", "host", "pid"}
        assert instance["state"] == "running"
    assert sum(instance["load"] for instance in found["instances"]) == 8
    assert [task["id"] for task in found["tasks"]] == [f"0_{n}" for n in range(8)]
    for task in found["tasks"]:
        assert task.keys() >= {
            *("id", "active", "worker", "epoch", "topics", "state_bytes", "input_lag", "learners", "standbys")
        }
        assert task["topics"] == ["payments"]
    assert found["hand_overs"].keys() >= HAND_OVERS


def test_the_app_by_module_or_by_id(group: Console) -> None:
    assert group("status", "bank:app", "--json").json["application"] == "bank"


def test_a_log_is_looked_for_upwards(group: Console) -> None:
    below = group.folder / "some" / "where"
    below.mkdir(parents=True, exist_ok=True)
    done = group("query", "bank", "balances", "ann", "--json", cwd=below)
    assert done.json["value"] == 7
    assert not list(below.iterdir())


def test_query(group: Console) -> None:
    found = group.here("query", "bank", "balances", "ann", "--json")
    assert found.json.keys() >= {"schema", "key", "value", "found", "task", "instance", "role", "restore_lag"}
    assert (found.code, found.json["value"], found.json["found"], found.json["role"]) == (0, 7, True, "active")
    epochs = {task["id"]: task["epoch"] for task in group.here("status", "bank", "--json").json["tasks"]}
    assert found.json["epoch"] == epochs[found.json["task"]] >= 1
    missing = group.here("query", "bank", "balances", "eve", "--json")
    assert (missing.code, missing.json["value"], missing.json["found"]) == (5, None, False)
    plain = group.here("query", "bank", "balances", "eve")
    assert (plain.code, plain.out) == (5, "") and plain.err.startswith("error: table 'balances' has no key eve")
    assert group.here("query", "bank", "balance", "ann").code == 2


def test_a_secret_to_read_reads_and_nothing_more(group: Console) -> None:
    """Three files: the one that was made, and two that allow less. No flag is needed for the first."""
    for right in ("read", "scale"):
        made = group.here("secret", "bank", "--right", right, "--out", f"{right}.secret", "--json")
        assert (made.code, made.json["right"]) == (0, right)
        assert stat.S_IMODE((group.folder / f"{right}.secret").stat().st_mode) == 0o600
    shown = group.here("secret", "bank").out
    assert (
        "allows to join" in shown
        and (group.folder / ".orchestrator/bank.db-bank.secret").read_text()[5:69] not in shown
    )
    read, scale = ("--secret-file", "read.secret"), ("--secret-file", "scale.secret")
    for words in (("status", "bank"), ("explain", "bank", "0_1"), ("query", "bank", "balances", "ann")):
        assert group.here(*words, *read).code == 0
    for words in (
        ("scale-down", "bank", "--by", "1"),
        ("scale-down", "bank", "--undo"),
        ("scale-up", "bank", "--by", "1"),
        ("drain", "bank", "i1"),
    ):
        refused = group.here(*words, *read)
        assert refused.code == 3 and refused.out == "", words
        assert refused.err.startswith("error: a secret to read does not allow to scale; "), refused
        assert refused.err.count("\n") == 1
    assert group.here("scale-down", "bank", "--to", "100%", *scale).code == 0
    joins = group("run", "bank:app", "--instances", "1", *scale)
    assert joins.code == 3 and "a secret to scale does not allow to join" in joins.err
    (group.folder / "wrong.secret").write_text("read " + "0" * 64 + "\n")
    (group.folder / "wrong.secret").chmod(0o600)
    wrong = group.here("status", "bank", "--secret-file", "wrong.secret")
    assert wrong.code == 3 and "does not have this secret of 'bank'" in wrong.err
    assert group.here("status", "bank", "--secret-file", "none").code == 2
    assert group.here("secret", "bank", "--renew").code == 3, "it runs"
    stable(group, 3)


def test_the_first_secret_is_made_before_the_first_start(tmp_path: Path) -> None:
    """As the pages for containers have it. A start without it leaves no secret that would be found instead of it."""
    console = Console(tmp_path).bank()
    try:
        made = console.here("secret", "bank", "--new", "--out", "group.secret", "--json")
        assert (made.code, made.json["right"]) == (0, "join") and not (console.folder / ".orchestrator").exists()
        assert stat.S_IMODE((console.folder / "group.secret").stat().st_mode) == 0o600
        assert console.here("secret", "bank", "--new", "--out", "group.secret").code == 2, "it replaces none"
        console.run("--secret-file", "group.secret", wait=False)
        assert console.here("wait", "bank", "--instances", "1", *WAIT, "--secret-file", "group.secret").code == 0
        refused = console("run", "bank:app", "--name", "other", "--state-dir", "elsewhere")
        assert (
            refused.code == 3 and "there is no secret at" in refused.err and made.json["fingerprint"] in refused.err
        ), refused
        assert not list(console.folder.rglob("*-bank.secret"))
    finally:
        console.close()


def test_everything_is_private(group: Console) -> None:
    """Log, its -wal and -shm, secret, stores, journals: nobody else may read a file or look into a folder."""
    place = group.folder / ".orchestrator"
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (place, *place.rglob("*")) if path.exists()}
    names = {path.name for path in found}
    assert names >= {
        "bank.db",
        "bank.db-wal",
        "bank.db-shm",
        "bank.db-bank.secret",
        "journal.jsonl",
        "lock",
        "fleet.lock",
    }
    assert not {str(path): oct(mode) for path, mode in found.items() if mode & 0o077}


def test_consume_prints_what_is_there(group: Console) -> None:
    lines = [json.loads(line) for line in group.here("consume", "bank", "alerts").out.splitlines()]
    assert [(line["key"], line["value"]) for line in lines] == [("bob", "overdrawn")]
    changes = [json.loads(line) for line in group.here("consume", "bank", "bank-balances-changelog").out.splitlines()]
    assert {line["key"]: line["value"] for line in changes} == {"ann": 7, "bob": -2}
    assert group.here("consume", "bank", "alarms").code == 2


def test_explain(group: Console) -> None:
    found = group.here("explain", "bank", "0_3", "--json")
    assert found.json.keys() >= {"schema", "task", "active", "why", "waiting_for"}
    assert found.json["why"] and not found.json["waiting_for"]
    wrong = group.here("explain", "bank", "9_9")
    assert wrong.code == 2 and "there are 0_0, 0_1" in wrong.err


@pytest.mark.parametrize("amount", [["--to", "3"], ["--to", "7"], ["--to", "100%"], ["--to", "99.9%"], ["--by", "10%"]])
def test_nothing_to_do(group: Console, amount: list[str]) -> None:
    done = group.here("scale-down", "bank", *amount, "--wait", "--json")
    assert (done.code, done.json["outcome"], done.json["from"], done.json["to"]) == (0, "nothing to do", 3, 3)
    assert done.json.keys() >= DOWN


def test_refusals(group: Console) -> None:
    assert group.here("scale-down", "bank", "--to", "1", "--current", "40").code == 3
    assert group.here("scale-down", "bank", "--apply", "0123").code == 3
    assert group.here("scale-down", "bank", "--instances", "i77").code == 2
    assert group.here("scale-down", "bank", "--instances", "i1,i2,i3").code == 2
    assert group.here("scale-down", "bank", "--instances", "i2, i3", "--plan", "--json").json["leaving"] == ["i2", "i3"]
    assert group.here("drain", "bank", "i77").code == 2
    assert group.here("scale-up", "bank", "--to", "4", "--current", "2").code == 3
    assert group.here("scale-up", "bank", "--to", "80%", "--json").json["outcome"] == "nothing to do"
    undone = group.here("scale-down", "bank", "--undo", "--json")
    assert (undone.code, undone.json["outcome"]) == (0, "nothing to do")
    followed = group.here("scale-down", "bank", "--follow", "--json")
    assert (followed.code, followed.json["outcome"]) == (0, "nothing to do")
    stable(group, 3)


def test_answers_of_one_shape(group: Console) -> None:
    group.pay(("ann", 0))
    lines = group.here("consume", "bank", "payments").out
    assert lines and group.here("consume", "bank", "payments", "--json").out == lines
    none = group.here("query", "bank", "balances", "")
    assert none.code == 5 and "has no key '' (an empty one); it is read from" in none.err


def test_a_plan_changes_nothing_and_fits_until_the_group_changes(group: Console) -> None:
    before = stable(group, 3)
    planned = group.here("scale-down", "bank", "--by", "1", "--plan", "--json")
    plan = planned.json
    assert (planned.code, plan["outcome"], plan["from"], plan["to"]) == (0, "planned", 3, 2)
    assert {move["from"] for move in plan["moves"]} == set(plan["leaving"])
    assert all(move.keys() >= {"task", "from", "to", "bytes", "ready_copy"} for move in plan["moves"])
    assert sorted([*plan["leaving"], *plan["staying"]]) == [i["id"] for i in before["instances"]]
    assert stable(group, 3)["generation"] == before["generation"]
    group.pay(("ann", 0))
    applied = group.here("scale-down", "bank", "--apply", plan["plan"], "--wait", "--json")
    assert (applied.code, applied.json["outcome"]) == (0, "done"), applied
    assert applied.json["leaving"] == plan["leaving"]
    owners = {t["id"]: t["active"] for t in group.here("status", "bank", "--json").json["tasks"]}
    gone = {(move["task"], move["to"]) for move in applied.json["moves"]}
    assert gone and gone <= owners.items(), "a move that is over names where the task has gone"
    assert applied.json.keys() >= DOWN and applied.json["hand_overs"].keys() >= HAND_OVERS
    again = group.here("scale-down", "bank", "--apply", plan["plan"], "--json")
    assert (again.code, again.out) == (3, "") and "does not fit" in again.err
    before_it = group.here("scale-down", "bank", "--by", "1", "--plan", "--json").json["plan"]
    assert group.here("scale-up", "bank", "--by", "1").code == 0
    late = group.here("scale-down", "bank", "--apply", before_it)
    assert late.code == 3 and "does not fit" in late.err, "one that was started is waited for, and counts"
    stable(group, 3)
    assert group.here("scale-down", "bank", "--by", "1", "--wait").code == 0
    grown = group.here("scale-up", "bank", "--by", "1", "--wait", "--json")
    assert grown.json.keys() >= {"schema", "from", "to", "added", "outcome", "elapsed_s", "hand_overs"}
    assert (grown.json["from"], grown.json["to"], grown.json["outcome"]) == (2, 3, "done")
    stable(group, 3)


def test_scale_up_tells_its_own_hand_overs_and_is_taken_back_at_its_deadline(group: Console) -> None:
    assert group.here("scale-up", "bank", "--to", "3").out == (
        "nothing to do: 3 instances run, and --to 3 asks for no more\n"
    )
    assert group.here("scale-up", "bank", "--to", "3", "--json").json["hand_overs"]["count"] == 0
    done = group.here("scale-up", "bank", "--by", "1")
    [name] = re.findall(r"i\d+", done.out)
    again = group.here("scale-up", "bank", "--to", "4", "--json").json
    assert again["outcome"] == "nothing to do", "what was started and has not joined yet counts"

    url = f"sqlite:{group.folder / '.orchestrator/bank.db'}"
    words = Namespace(
        app="bank", log=url, flags=(), kafka_config="", state_dir="", secret_file="", tls_cert="", tls_key="", tls_ca=""
    )

    group.until(name, lambda: name in {i["id"] for i in group.here("status", "bank", "--json").json["instances"]})

    async def with_another() -> dict[str, Any] | None:
        return {"instances": [name, "i99"]}

    async def waited() -> None:
        async with client_of(words) as (_, _, client):
            with pytest.raises(TimedOut, match=f"{name} leave again"):
                await wait_stable(client, [name, "i99"], 0.0, StatusRequest(), with_another)

    asyncio.run(waited())
    stable(group, 3)
    assert name not in {i["id"] for i in stable(group, 3)["instances"]}


def test_a_deadline_takes_the_mark_back(group: Console) -> None:
    done = group.here("scale-down", "bank", "--to", "1", "--timeout", "1ms", "--wait", "--json")
    assert (done.code, done.json["outcome"]) == (4, "rolled back")
    assert done.err.count("\n") == 1 and "they stay" in done.err
    stable(group, 3)


def test_force_stops_the_leavers(group: Console) -> None:
    done = group.here("scale-down", "bank", "--by", "1", "--timeout", "1ms", "--force", "--wait", "--json")
    assert (done.code, done.json["outcome"]) == (0, "forced")
    stable(group, 2)
    assert group.here("query", "bank", "balances", "ann").out == "7\n"
    grow(group, 3)


def test_an_interrupt_leaves_it_running(group: Console) -> None:
    """SIGSTOP of a leaver's worker holds the scale-down up, so that the interrupt comes in its midst."""
    for number, code, deadline in ((signal.SIGINT, 130, ()), (signal.SIGTERM, 143, ("--timeout", "10m"))):
        status = stable(group, 3)
        leaver = group.here("scale-down", "bank", "--by", "1", "--plan", "--json").json["leaving"][0]
        worker = next(i["pid"] for i in status["instances"] if i["id"] == leaver)
        os.kill(worker, signal.SIGSTOP)
        try:
            name = f"leave{code}"
            waiting = group.start("scale-down", "bank", "--instances", leaver, "--wait", name=name)
            group.until("the scale-down", lambda: group.here("status", "bank", "--json").json["scale"])
            group.until("progress", lambda name=name: "still leaving" in group.said(name))
            joined = group.start("scale-down", "bank", "--to", "2", "--wait", *deadline, name=f"joins{code}")
            group.until("progress", lambda code=code: "still leaving" in group.said(f"joins{code}"))
            waiting.send_signal(number)
            assert group.end(waiting) == code
            told = group.said(name)
            assert "goes on" in told and "scale-down bank --follow" in told and "scale-down bank --undo" in told
            assert "Traceback" not in told
            scale = group.here("status", "bank", "--json").json["scale"]
            assert scale["leaving"] == [leaver] and scale.keys() >= {"leaving", "deadline_s", "moves_left"}
            undone = group.here("scale-down", "bank", "--undo", "--json")
            assert (undone.code, undone.json["outcome"]) == (0, "rolled back")
            assert group.end(joined) == 4, group.said(f"joins{code}")  # it waited for the one that ran, as for its own
            assert "it was taken back, with `--undo`" in group.said(f"joins{code}")
        finally:
            os.kill(worker, signal.SIGCONT)
    stable(group, 3)


INTERRUPTED = """
import argparse, asyncio, os, signal
from orchestrator.cli.main import handle_signals
from workers.commands import scale_down

async def wait_for_end(client, answer, progress):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

scale_down.wait_for_end = wait_for_end
handle_signals()
answer = {"plan": "1", "leaving": []}
asyncio.run(scale_down._see_through(argparse.Namespace(json=False), None, None, "bank", answer, {}))
"""


def test_an_interrupt_while_the_command_is_no_wait(tmp_path: Path) -> None:
    """SIGTERM is raised in the coroutine then, as another error: the command ended without a word."""
    console = Console(tmp_path / "place")
    console.write("interrupted.py", INTERRUPTED)
    assert console.end(console.script("interrupted.py", name="interrupted")) == 143
    assert "the scale-down goes on" in console.said("interrupted")
    console.close()


def test_follow_sees_it_end(group: Console) -> None:
    begun = group.here("scale-down", "bank", "--by", "1", "--json")
    assert (begun.code, begun.json["outcome"]) == (0, "running")
    followed: Done = group.here("scale-down", "bank", "--follow", "--json")
    assert followed.code == 0 and followed.json["outcome"] in ("done", "nothing to do")
    stable(group, 2)
    grow(group, 3)


def test_partitions_that_come_while_a_scale_down_runs_are_not_counted() -> None:
    def tasks(**epochs: int) -> Any:
        return {"tasks": [{"id": name, "active": f"i{epoch % 2}", "epoch": epoch} for name, epoch in epochs.items()]}

    assert counts(tasks(a=1, b=1, c=1), tasks(a=1, b=2, c=3, d=1)) == (1, 1)


def test_drain(group: Console) -> None:
    name = stable(group, 3)["instances"][-1]["id"]
    done = group.here("drain", "bank", name, "--wait", "--json")
    assert (done.code, done.json["outcome"], done.json["leaving"]) == (0, "done", [name])
    stable(group, 2)
    grow(group, 3)


def test_two_drains_at_once(group: Console) -> None:
    """Two hooks, as when a node is emptied. Both hand over before they end, and neither is refused."""
    names = [row["id"] for row in stable(group, 3)["instances"][1:]]
    drains = [group.start("drain", "bank", name, "--wait", "--json", name=f"drain-{name}") for name in names]
    assert [group.end(drain) for drain in drains] == [0, 0], [group.said(f"drain-{name}") for name in names]
    for name in names:
        told = json.loads((group.folder / f"drain-{name}.out").read_text())
        assert (told["outcome"], told["leaving"]) == ("done", [name])
    stable(group, 1)
    assert re.fullmatch("7\n", group.here("query", "bank", "balances", "ann").out)
    grow(group, 3)


def test_scaling_up_while_scaling_down(group: Console) -> None:
    assert group.here("scale-down", "bank", "--by", "1").code == 0
    grown = group.here("scale-up", "bank", "--by", "1", "--wait", "--json")
    assert (grown.code, grown.json["outcome"]) == (0, "done"), grown
    stable(group, 3)
    assert re.fullmatch("7\n", group.here("query", "bank", "balances", "ann").out)


def test_a_scale_up_whose_instance_is_sent_away_again_does_not_wait_for_it(group: Console) -> None:
    """Two operators at once: it waited for its timeout, ten minutes, for what had come and gone."""
    other = stable(group, 3)["instances"]
    up = group.start("scale-up", "bank", "--by", "1", "--wait", name="up")
    known = {row["id"] for row in other}

    def new() -> set[str]:
        return {i["id"] for i in group.here("status", "bank", "--json").json["instances"]} - known

    group.until("the new one", new)
    [name] = new()
    assert group.here("drain", "bank", name, "--wait").code in (0, 2)
    code, said = group.end(up), group.said("up")
    assert (code == 0 and "balanced" in said) or (code == 1 and f"error: {name} has left again" in said), (code, said)
    stable(group, 3)
