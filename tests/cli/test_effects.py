"""Settings are seen acting, with real processes. Which test shows which setting: test_every_setting_acts.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.requests import InstancesRequest
from orchestrator.coordinator.transport import connect
from orchestrator.durations import parse_duration_ms
from state.log.sqlite import SqliteLog, open_sqlite
from tests.attacks.test_tls import certificate
from tests.cli.console import WAIT, Console, Done
from tests.group.coordinators import ask
from workers.connection.credentials import credentials_of
from workers.spec import InstanceSpec
from workers.surroundings import REAL

pytestmark = pytest.mark.processes
SOON = ("--heartbeat", "200ms")


def status(console: Console) -> Any:
    return console.here("status", "bank", "--json").json


def tasks_of(console: Console, name: str) -> list[str]:
    return [task["id"] for task in status(console)["tasks"] if task["active"] == name]


class Instance:
    """One that runs by its name, with the processes below it."""

    def __init__(self, console: Console, name: str, *words: str) -> None:
        self.console, self.name = console, name
        self.run = console.start("run", "bank:app", "--name", name, *words, name="run")

    def pids(self) -> list[int]:
        """The process that was started, the instance, its worker."""
        found = [self.run.pid]
        for _ in range(2):
            children = Path(f"/proc/{found[-1]}/task/{found[-1]}/children")
            self.console.until("its child", lambda children=children: children.read_text())
            found.append(int(children.read_text().split()[0]))
        return found

    def signal(self, number: int, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, number)


def stable(console: Console, instances: int) -> None:
    done = console.here("wait", "bank", "--instances", str(instances), *WAIT)
    assert done.code == 0, (done, console.said("run"))


def waits(console: Console, task: str, setting: str, at_most: str) -> None:
    """Until `explain` says that the task waits for that long because of the setting; its default is less than half of it."""
    said: list[str] = []

    def is_said() -> bool:
        said[:] = [console.here("explain", "bank", task).out]
        found = re.search(rf"([\d.]+) min(?:, so that [a-z ]+)? \({setting}\)", said[0])
        return found is not None and at_most_ms / 2 < float(found[1]) * 60_000 <= at_most_ms

    at_most_ms = parse_duration_ms(at_most)
    deadline = time.monotonic() + 90
    while not is_said():
        assert time.monotonic() < deadline, f"no wait for {setting}; explain said: {said}; {console.said('run')}"


@pytest.mark.long
def test_times_of_the_group(console: Console) -> None:
    """Each is far above its default, so that nothing happens meanwhile but what `explain` says of it."""
    words = (*SOON, "--standbys", "1", "--session-timeout", "13m", "--release-timeout", "12m")
    words = (*words, "--disconnect-grace", "11m", "--rejoin-grace", "10m")
    first = Instance(console, "a", *words)
    stable(console, 1)
    second = Instance(console, "b", *words)
    stable(console, 2)
    [task, *_] = tasks_of(console, "b")
    worker = second.pids()[-1]
    second.signal(signal.SIGSTOP, worker)
    waits(console, task, "disconnect_grace", "11m")  # its connection stands, and a standby is warm
    second.signal(signal.SIGKILL, *second.pids())
    second.run.wait()
    waits(console, task, "disconnect_grace", "11m")

    second = Instance(console, "b", *words)
    stable(console, 2)
    [task, *_] = tasks_of(console, "b")
    halted = second.pids()[-1:]
    second.signal(signal.SIGSTOP, *halted)
    try:
        assert console.here("scale-down", "bank", "--instances", "b").code == 0
        waits(console, task, "release_timeout", "12m")
        assert console.here("scale-down", "bank", "--undo").code == 0
        own = tasks_of(console, "a")[0]
        halted += first.pids()[1:]
        first.signal(signal.SIGSTOP, *first.pids()[1:])
        waits(console, own, "rejoin_grace", "10m")
    finally:
        first.signal(signal.SIGCONT, *halted)


@pytest.mark.long
def test_a_member_that_stands_still_without_a_standby(console: Console) -> None:
    words = (*SOON, "--session-timeout", "13m")
    Instance(console, "a", *words)
    stable(console, 1)
    second = Instance(console, "b", *words)
    stable(console, 2)
    [task, *_] = tasks_of(console, "b")
    worker = second.pids()[-1]
    second.signal(signal.SIGSTOP, worker)
    try:
        waits(console, task, "session_timeout", "13m")
    finally:
        second.signal(signal.SIGCONT, worker)


def test_a_new_group_waits_for_others(console: Console) -> None:
    Instance(console, "a", *SOON, "--initial-delay", "10m")
    console.until("the group", lambda: console.here("status", "bank").code == 0)
    waits(console, "0_0", "initial_delay", "10m")
    assert not tasks_of(console, "a")


@pytest.mark.long  # what it looks for is there for a moment: a loaded machine looks too seldom
def test_learners_of_a_slow_restore(console: Console) -> None:
    """1 byte a second: nobody gets anywhere, one at a time learns, and is given up; where any lag will do, one takes over once it has read
    nothing for so long that its rate says no more."""
    slow = (*SOON, "--restore-rate-limit", "1B", "--acceptable-recovery-time", "1ms", "--max-learners", "1")
    first = Instance(console, "a", *slow, "--acceptable-recovery-lag", "0", "--learner-timeout", "1s")
    stable(console, 1)
    lines = "\n".join(
        json.dumps({"key": key, "value": {"account": key, "amount": 1}})
        for key in (f"{n:05d}{'x' * 200}" for n in range(12_000))
    )
    assert console.here("produce", "bank:app", "payments", stdin=lines).code == 0
    console.until("all payments", lambda: sum(t["records"] or 0 for t in status(console)["tasks"]) == 12_000)
    Instance(console, "b", *slow, "--acceptable-recovery-lag", "0")
    most, given_up = 0, ""

    def is_given_up() -> bool:
        nonlocal most, given_up
        tasks = status(console)["tasks"]
        most = max(most, sum(len(task["learners"]) for task in tasks))
        said = [console.here("explain", "bank", task["id"]).out for task in tasks]
        given_up = next((text for text in said if "(learner_timeout)" in text), "")
        return given_up != ""

    console.until("a learner to be given up", is_given_up)
    assert "after 1.0 s without progress" in given_up and most == 1, (given_up, most)
    assert len(tasks_of(console, "b")) < 4
    assert console.here("settings", "set", "bank", "learner-timeout=5m").code == 0
    Instance(console, "c", *slow, "--acceptable-recovery-lag", "1000000")
    console.until("c to take over", lambda: tasks_of(console, "c"))
    assert first.run.poll() is None


def test_a_fleet(console: Console) -> None:
    """What status, the console and the disk show of it; and an output that waits for its commit."""
    words = (
        "--workers",
        "2",
        "--standbys",
        "1",
        "--protocol",
        "cooperative",
        "--task-weights",
        "0_0=4",
        "--state-dir",
        "x",
    )
    fleet = console.run(*SOON, *words, "--log-level", "debug", "--commit-interval", "1h", instances=2)
    found = status(console)
    assert found["protocol"] == "cooperative"
    assert [row["workers"] for row in found["instances"]] == [2, 2]
    assert {task["id"]: task["weight"] for task in found["tasks"]} == {f"0_{n}": 4 if n == 0 else 1 for n in range(8)}
    console.until("standbys", lambda: all(len(task["standbys"]) == 1 for task in status(console)["tasks"]))
    assert " INFO orchestrator.candidate: " in console.said("run"), "an instance"
    assert re.search(r" i2\.1 DEBUG ", console.said("run")), "a worker"
    assert (console.folder / "x/bank/i1/journal.jsonl").exists() and not (
        console.folder / ".orchestrator/state"
    ).exists()
    console.pay(("bob", -2))
    console.until("the first commit, at once", lambda: console.here("query", "bank", "balances", "bob").out == "-2\n")
    console.pay(("bob", -2))
    assert console.here("query", "bank", "balances", "bob").out == "-2\n", "it waits for the commit for two seconds"
    assert console.here("consume", "bank", "alerts").out.count("overdrawn") == 1
    fleet.terminate()
    assert console.end(fleet) == 0
    assert console.here("consume", "bank", "alerts").out.count("overdrawn") == 2


def test_a_death_in_a_commit(console: Console) -> None:
    now = console.folder / "now"
    console.run(*SOON, "--failpoint", f"commit:{now}")
    now.touch()
    console.pay(("bob", -2))
    console.until("its death", lambda: "i1 was killed by signal 9; it is started again" in console.said("run"))
    now.unlink(missing_ok=True)
    console.until("the balance", lambda: console.here("query", "bank", "balances", "bob").out == "-2\n")
    assert console.here("consume", "bank", "alerts").out.count("overdrawn") == 1


def test_a_balance_that_is_good_enough(console: Console) -> None:
    for name, instances in (("a", 1), ("b", 2)):
        Instance(console, name, *SOON, "--balancing-factor", "10")
        stable(console, instances)
    assert len(tasks_of(console, "a")) == 8
    said = console.here("explain", "bank", "0_0").out
    assert "more than 10 (balancing_factor)" in said and said.endswith("\nset by --balancing-factor 10\n"), said
    assert console.here("settings", "set", "bank", "balancing-factor=9").code == 0
    said = console.here("explain", "bank", "0_0").out
    assert "more than 9 (balancing_factor)" in said and said.endswith("\nset by `settings set balancing-factor=9`\n")


def test_a_heartbeat_a_minute(console: Console) -> None:
    """A worker that is stopped is silent after two heartbeats, and not before."""
    for name, words in (("a", ("--heartbeat", "60s", "--session-timeout", "5m")), ("b", ())):
        console = Console(console.folder / name).bank()
        instance = Instance(console, "i", *(words or SOON))
        stable(console, 1)
        instance.signal(signal.SIGSTOP, worker := instance.pids()[-1])
        try:
            if words:
                assert "silent" not in console.here("explain", "bank", "0_0").out
            else:
                console.until("silence", lambda c=console: "silent" in c.here("explain", "bank", "0_0").out)
        finally:
            instance.signal(signal.SIGCONT, worker)
            console.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
@pytest.mark.long  # tests/attacks has the short form
def test_tls_between_machines(console: Console) -> None:
    """127.1 is this machine in a form that is not taken for it. Both ends show certificates, or nothing is said."""
    fleet, other = (certificate(console.folder, name) for name in ("fleet", "other"))
    words = ("--tls-cert", fleet[0], "--tls-key", fleet[1], "--tls-ca", fleet[0])
    console.start("run", "bank:app", *SOON, "--listen", "127.1:0", *words, name="run")
    done = console.here("wait", "bank", *WAIT, *words)
    assert done.code == 0, (done, console.said("run"))
    found = console.here("status", "bank", "--json", *words).json
    assert found["coordinator"]["address"].startswith("tls://")
    strangers: list[tuple[str, ...]] = [(), ("--tls-ca", fleet[0]), ("--tls-cert", other[0], "--tls-key", other[1])]
    for stranger in (*strangers, (*words[:4], "--tls-ca", other[0])):
        refused: Done = console.here("status", "bank", *stranger)
        assert refused.code == 3 and refused.out == "" and "has no coordinator" not in refused.err, (stranger, refused)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
@pytest.mark.long
def test_a_worker_that_is_killed_between_a_new_certificate_and_its_key(console: Console) -> None:
    """The one that takes its place waits for the key: the fleet ended with it."""
    (path, key), new = (certificate(console.folder, name) for name in ("fleet", "new"))
    words = ("--listen", "127.1:0", "--tls-cert", path, "--tls-key", key)
    run = console.start("run", "bank:app", *SOON, *words, name="run")
    done = console.here("wait", "bank", *WAIT)
    assert done.code == 0, (done, console.said("run"))
    [row] = console.here("status", "bank", "--json").json["instances"]
    Path(new[0]).replace(path)
    os.kill(row["pid"], signal.SIGKILL)
    console.until("the wait", lambda: "certificates are waited for" in console.said("run"))
    assert run.poll() is None
    Path(new[1]).replace(key)
    console.pay(("ann", 3))
    console.until("the payment", lambda: console.here("query", "bank", "balances", "ann").out.strip() == "3")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
@pytest.mark.long
def test_an_address_that_others_are_given(console: Console) -> None:
    """They listen on all addresses of their machine, and members, commands and queries use the one that is advertised."""
    path, key = certificate(console.folder, "fleet")
    words = ("--listen", "0.0.0.0:0", "--advertise", "127.1", "--tls-cert", path, "--tls-key", key)
    console.start("run", "bank:app", "--instances", "2", *SOON, *words, name="run")
    done = console.here("wait", "bank", "--instances", "2", *WAIT)
    assert done.code == 0, (done, console.said("run"))
    found = console.here("status", "bank", "--json").json
    address = found["coordinator"]["address"]
    assert address.startswith("tls://127.1:")
    given = asyncio.run(places(address, credentials_of("bank", f"sqlite:{console.folder / '.orchestrator/bank.db'}")))
    assert len(given) == 2 and all(place.startswith("tls://127.1:") for place in given), given
    assert address in given, "an instance has one port"
    assert console.here("query", "bank", "balances", "ann").code == 5  # asked there, and it is not there


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_an_address_that_leads_nowhere_is_nobodys_coordinator(console: Console) -> None:
    """It took the lease and renewed it, its own worker did not reach it either, and the group had no coordinator for ever."""
    path, key = certificate(console.folder, "fleet")
    words = ("--listen", "0.0.0.0:0", "--tls-cert", path, "--tls-key", key)
    console.start("run", "bank:app", "--name", "lost", "--advertise", "127.1:1", *SOON, *words, name="lost")
    console.until("the reason", lambda: "does not reach itself at its --advertise" in console.said("lost"))
    console.start("run", "bank:app", "--name", "found", "--advertise", "127.1", *SOON, *words, name="run")
    done = console.here("wait", "bank", "--instances", "2", *WAIT)
    assert done.code == 0, (done, console.said("lost"))
    assert console.here("status", "bank", "--json").json["coordinator"]["instance"] == "found"
    assert console.said("lost").count("does not reach itself") == 1


async def places(address: str, credentials: Credentials) -> list[str]:
    """Where members say that their instances are reached."""
    link = await connect(address, credentials)
    try:
        return [one["address"] for one in await ask(link, InstancesRequest())]
    finally:
        await link.close()


@pytest.mark.long  # half a minute of commands, one after the other
def test_one_place_and_one_access_for_every_command(console: Console) -> None:
    """Of each command that takes them: the log, the secret and the certificates that were named are those it uses."""
    console.run(*SOON)
    shutil.copy(console.folder / "bank.py", console.folder / "other.py")
    asked = {
        "status": ["bank"],
        "explain": ["bank", "0_0"],
        "query": ["bank", "balances", "ann"],
        "scale-up": ["bank", "--by", "1"],
        "scale-down": ["bank", "--by", "1"],
        "drain": ["bank", "i1"],
        "resume": ["bank", "0_0"],
        "table": ["scan", "bank", "balances"],
        "wait": ["bank", "--timeout", "100ms"],
        "settings": ["show", "bank"],
    }
    for command, words in asked.items():
        for flags, code, said in (
            (("--log", "sqlite:none.db"), 4 if command == "wait" else 2, "no log at none.db"),
            (("--secret-file", "none"), 4 if command == "wait" else 2, "there is no secret at none"),
            (("--tls-cert", "a.pem"), 2, "--tls-cert and --tls-key go together"),
            (("--tls-key", "a.pem"), 2, "--tls-cert and --tls-key go together"),
            (("--tls-ca", "a.pem"), 2, "--tls-ca a.pem cannot be read"),
        ):
            done = console.here(command, *words, *flags)
            assert done.code == code and said in done.err, (command, flags, done)
    for command, words in {
        "consume": ["bank", "alerts"],
        "topics": ["grow", "bank", "payments", "--partitions", "9"],
    }.items():
        done = console.here(command, *words, "--log", "sqlite:none.db")
        assert done.code == 2 and "no log at none.db" in done.err, (command, done)
    assert console.here("secret", "bank", "--secret-file", "none").code == 2
    assert "no log at none.db" in console.here("secret", "bank", "--log", "sqlite:none.db").err
    made = console.here("produce", "bank:app", "payments", "--log", "sqlite:new.db", stdin="")
    assert made.code == 0 and (console.folder / "new.db").exists(), made


async def test_a_log_that_is_flushed_with_each_commit(tmp_path: Path) -> None:
    """What a worker opens: SQLite answers 1 for NORMAL, 2 for FULL."""
    for chosen, answer in (("NORMAL", 1), ("FULL", 2)):
        spec = InstanceSpec("a:app", "a", "i1", f"sqlite:{tmp_path / 'log.db'}", str(tmp_path), synchronous=chosen)
        await (await open_sqlite(tmp_path / "log.db", create=True)).close()
        opened = await REAL.open_log(spec)
        assert isinstance(opened, SqliteLog)
        with opened._writer.transaction() as connection:
            assert connection.execute("pragma synchronous").fetchone() == (answer,)
        await opened.close()
