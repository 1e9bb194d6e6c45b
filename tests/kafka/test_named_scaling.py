"""Instances that joined by name, each a process of its own with a state folder of its own, scaled from another place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console, Done
from tests.kafka.place import Place

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
NAMES = ("a", "b", "c", "d")
ACCOUNTS, DEADLINE_S = 40, 90.0
FAST = ("--session-timeout", "8s", "--heartbeat", "300ms")


class Machines:
    """The instances by name, and an operator's machine, which has the secret and no state of the app."""

    def __init__(self, console: Console) -> None:
        place = Place()
        self._console = console
        self._log = ("--log", f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}")
        self._secret = console.folder / "a/bank/group.secret"
        self._paid = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        words = ["run", "bank:app", "--name", name, *self._log, "--state-dir", name, *FAST]
        if name == NAMES[0]:  # it makes the secret
            self.running[name] = self._console.start(*words, name=name)
            self._console.until("a secret", self._secret.exists)
        else:
            self.running[name] = self._console.start(*words, "--secret-file", str(self._secret), name=name)

    def asked(self, *words: str) -> Done:
        """A command on the operator's machine; it may last on a busy one."""
        place = ["--state-dir", "operator", "--secret-file", str(self._secret)] if words[0] != "produce" else []
        for name in ("asked.out", "asked.err"):
            self._console.write(name, "")
        code = self._console.start(*words, *self._log, *place, name="asked").wait(DEADLINE_S)
        return Done(code, *((self._console.folder / f"asked.{kind}").read_text() for kind in ("out", "err")))

    def stable(self) -> dict[str, set[str]]:
        """The tasks of each instance, once those that run are the group."""
        done = self.asked("wait", "bank", "--instances", str(len(self.running)), "--timeout", "80s")
        assert done.code == 0, (done, {name: self._console.said(name) for name in self.running})
        status = self.asked("status", "bank", "--json").json
        found = {
            row["id"]: {t["id"] for t in status["tasks"] if t["active"] == row["id"]} for row in status["instances"]
        }
        assert found.keys() == self.running.keys() and sum(map(len, found.values())) == 8, status
        return found

    def left(self, count: int) -> None:
        """So many end by themselves, in order; they count no more."""

        def ended() -> list[str]:
            return [name for name, process in self.running.items() if process.poll() is not None]

        self._console.until("their end", lambda: len(ended()) >= count)
        assert len(ended()) == count, ended()
        for name in ended():
            code = self.running.pop(name).wait()
            assert code == 0, (name, code, self._console.said(name))

    def pay(self) -> None:
        lines = [json.dumps({"key": f"k{n}", "value": {"account": f"k{n}", "amount": 5}}) for n in range(ACCOUNTS)]
        file = self._console.write(
            "payments.jsonl", "\n".join(lines * (self._paid + 1))
        )  # it goes on behind what it read
        done = self.asked("produce", "bank:app", "payments", "--file", str(file))
        assert done.code == 0, done
        self._paid += 1

    def balances(self) -> dict[str, Any]:
        done = self.asked("table", "dump", "bank", "balances", "--out", "rows.jsonl")
        assert done.code == 0, done
        rows = [json.loads(line) for line in (self._console.folder / "rows.jsonl").read_text().splitlines()]
        return {row["key"]: row["value"] for row in rows}

    def are_paid(self) -> None:
        """Once: nothing is lost and nothing doubled by whoever had the tasks."""
        assert self.balances() == {f"k{n}": 5 * self._paid for n in range(ACCOUNTS)}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    console = Console(tmp_path / "bank").bank()
    try:
        yield Machines(console)
    finally:
        console.close()


def test_half_of_them_leave_then_all_but_one_and_they_come_back(machines: Machines) -> None:
    for name in NAMES:
        machines.start(name)
    before = machines.stable()
    assert [len(tasks) for tasks in before.values()] == [2, 2, 2, 2]
    machines.pay()
    machines.are_paid()

    halved = machines.asked("scale-down", "bank", "--to", "50%", "--wait", "--timeout", "80s")
    assert halved.code == 0 and "4 -> 2 instances" in halved.out, halved
    machines.left(2)
    machines.pay()
    now = machines.stable()
    assert all(before[name] <= now[name] for name in now), "what stays keeps its tasks"
    machines.are_paid()

    for words in (("--to", "0"), ("--to", "0%")):
        refused = machines.asked("scale-down", "bank", *words)
        assert refused.code in (2, 3), refused
    machines.left(0)
    last = machines.asked("scale-down", "bank", "--to", "1", "--wait", "--timeout", "80s")
    assert last.code == 0 and last.out.startswith("2 -> 1 instance;"), last
    machines.left(1)
    machines.pay()
    machines.stable()
    machines.are_paid()

    for name in NAMES:
        if name not in machines.running:
            machines.start(name)
    machines.pay()
    assert [len(tasks) for tasks in machines.stable().values()] == [2, 2, 2, 2]
    machines.are_paid()
