"""What an instance has on disk once it is gone: a scale-down of a fleet takes it away, as a scale-up starts new names; what
comes back under its name, after a bounce or with `--name`, finds it."""

from __future__ import annotations

import pytest

from tests.cli.console import WAIT, Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "8s", "--heartbeat", "200ms", "--disconnect-grace", "300ms")


def tasks_on_disk(console: Console, instance: str) -> list[str]:
    folder = console.folder / ".orchestrator/state/bank" / instance
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def leaver(console: Console, to: str) -> str:
    done = console.here("scale-down", "bank", "--to", to, "--wait", "--json")
    assert done.code == 0, (done, console.said("run"))
    (name,) = done.json["leaving"]
    return str(name)


def test_it_goes_with_a_fleets_instance_that_the_group_sends_away(console: Console) -> None:
    fleet = console.run(*FAST, instances=2)
    console.pay(("ann", 7), ("bob", 2))
    assert tasks_on_disk(console, "i1") and tasks_on_disk(console, "i2")
    left = leaver(console, "50%")
    stays = {"i1": "i2", "i2": "i1"}[left]
    console.until("the end of its state", lambda: not tasks_on_disk(console, left))
    assert (console.folder / ".orchestrator/state/bank" / left / "journal.jsonl").exists(), "history reads it"
    assert console.balance("ann") == "7\n"
    assert len(kept := tasks_on_disk(console, stays)) == 8
    fleet.terminate()
    assert console.end(fleet) == 0, console.said("run")
    assert tasks_on_disk(console, stays) == kept, "a bounce: it comes back"


def test_it_stays_for_a_name_that_may_come_again(console: Console) -> None:
    both = {name: console.start("run", "bank:app", "--name", name, *FAST, name=name) for name in ("left", "right")}
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0
    console.pay(("ann", 7), ("bob", 2))
    gone = leaver(console, "50%")
    assert console.end(both[gone]) == 0, console.said(gone)
    assert tasks_on_disk(console, gone)
