"""An operator changes how a group works while it runs, on both logs: the protocol by bouncing its instances one by one, other
settings at once with `settings set`. Nothing is lost or doubled on the way, and what was set stays over restarts."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import Protocol, Settings
from tests.cli.console import Console
from tests.cli.test_idle_settings import STATELESS
from workers.commands.settings import given_live, passed_over

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "15s", "--heartbeat", "200ms", "--acceptable-recovery-lag", "0")
NAMES = ("a", "b")


class Group:
    """The bank on instances that are started by their names."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.paid: Counter[str] = Counter()
        self.alerts = 0

    def start(self, name: str, *words: str) -> None:
        self.running[name] = self.console.start("run", "bank:app", "--name", name, *FAST, *words, name="run")
        self.console.until(f"{name} in a stable group", lambda: self.is_stable())

    def bounce(self, name: str, *words: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        assert self.console.end(process) == 0, self.console.said("run")
        self.pay()  # while its tasks wait for it, or go elsewhere
        self.start(name, *words)

    def is_stable(self) -> bool:
        found = self.status()
        active = {task["active"] for task in found["tasks"]}
        return bool(found["stable"]) and {one["id"] for one in found["instances"]} == set(self.running) == active

    def status(self) -> Any:
        done = self.console.here("status", "bank", "--json")
        return done.json if done.code == 0 else {"stable": False, "tasks": [], "instances": [], "protocol": ""}

    def pay(self) -> None:
        payments = [(f"k{number % 11}", -1) for number in range(22)]
        self.console.pay(*payments)
        for key, amount in payments:
            self.paid[key] += amount

    def balances(self) -> dict[str, int]:
        lines = self.console.here("table", "dump", "bank", "balances").out.splitlines()
        return {row["key"]: row["value"] for row in map(json.loads, lines)}

    def standbys(self) -> int:
        return sum(len(task["standbys"]) for task in self.status()["tasks"])

    def settings(self, *words: str) -> Any:
        done = self.console.here("settings", *words, "--json")
        assert done.code == 0, done
        return done.json


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    console = Console(tmp_path / "place").bank()
    if request.param == "kafka":
        from tests.kafka.place import Place

        place = Place()
        console.write("orchestrator.toml", f'log = "kafka://127.0.0.1:{place.port}?prefix={place.prefix}"\n')
    yield Group(console)
    console.close()


@pytest.mark.long  # `make test-kafka` runs it on a broker
def test_a_protocol_is_changed_by_bounces(group: Group) -> None:
    """The group goes on by the older protocol until the last instance is configured for the newer one, whichever of them
    coordinates; back again it goes with the first."""
    for name in NAMES:
        group.start(name, "--protocol", "eager")
    group.pay()
    used = "eager"
    for protocol in ("cooperative", "learner"):
        for name in NAMES:
            assert group.status()["protocol"] == used, (protocol, name)
            group.bounce(name, "--protocol", protocol)
        used = protocol
        group.console.until(used, lambda wanted=used: group.status()["protocol"] == wanted)
    group.bounce("b", "--protocol", "cooperative")
    group.console.until("the older one", lambda: group.status()["protocol"] == "cooperative")
    group.console.until("all payments", lambda: group.balances() == dict(group.paid))


def test_settings_of_a_group_that_runs(group: Group) -> None:
    console = group.console
    for name in NAMES:
        group.start(name)
    group.pay()
    done = group.settings("set", "bank", "standbys=1", "max-learners=5")
    assert done["live"] == {"standbys": "1", "max-learners": "5"} and done["settings"]["standbys"] == "1"
    console.until("a standby of each task", lambda: group.standbys() == 8)
    for name in NAMES:  # its coordinator is another one by then, which is configured otherwise
        group.bounce(name, "--max-learners", "1")
        passed = "warning: --max-learners 1 has no effect: the group goes by `settings set max-learners=5`; "
        assert f"{passed}`orchestrator settings unset bank max-learners` gives it back\n" in console.said("run")
    console.until("a standby of each task", lambda: group.standbys() == 8)
    rows = {row["name"]: row for row in console.here("config", "show", "bank", "--json").json["settings"]}
    assert (rows["standbys"]["value"], rows["standbys"]["source"]) == ("1", "settings set, of the group of bank")
    assert (rows["max-learners"]["value"], rows["release-timeout"]["source"]) == ("5", "default")
    assert group.settings("set", "bank", "protocol=cooperative")["settings"]["protocol"] == "cooperative"
    console.until("the protocol", lambda: group.status()["protocol"] == "cooperative")
    assert group.settings("unset", "bank", "standbys", "protocol")["live"] == {"max-learners": "5"}
    assert "standbys" not in console.said("run"), "which was not given"
    console.until("no standby", lambda: group.standbys() == 0 and group.status()["protocol"] == "learner")
    console.until("all payments", lambda: group.balances() == dict(group.paid))
    assert "settings set" in console.here("settings", "show", "bank").out


@pytest.mark.long
def test_a_flag_acts_beside_what_was_set(group: Group) -> None:
    """A zone keeps standbys apart from their tasks, also such as an operator has set while the group ran; without any it is refused."""
    console = group.console
    for name in NAMES:
        group.start(name)
    refused = console.here("run", "bank:app", "--name", "c", *FAST, "--zone", "east")
    assert refused.code == 2 and "give --standbys" in refused.err, refused
    group.settings("set", "bank", "standbys=1")
    group.bounce("a", "--zone", "east")
    console.until("a standby of each task", lambda: group.standbys() == 8)
    group.settings("set", "bank", "standbys=0")
    refused = console.here("run", "bank:app", "--name", "c", *FAST, "--zone", "east")
    assert refused.code == 2 and "give --standbys" in refused.err, refused


@pytest.mark.parametrize(
    ("app", "changes", "why"),
    [
        (
            "bank",
            ("protocol=eager", "learner-timeout=9s"),
            "learner-timeout has no effect here: only the protocol learner",
        ),
        ("plain", ("standbys=1",), "standbys has no effect here: the app has no tables"),
        ("plain", ("max-learners=3",), "max-learners has no effect here: there are neither learners nor standbys"),
    ],
)
def test_what_would_do_nothing_is_refused(console: Console, app: str, changes: tuple[str, ...], why: str) -> None:
    """As the flag is that says the same; nothing of the command is kept."""
    console.write("plain.py", STATELESS)
    fleet = console.start("run", f"{app}:app", *FAST, name="run")
    console.until("the group", lambda: console.here("status", app).code == 0)
    done = console.here("settings", "set", app, *changes)
    assert done.code == 2 and why in done.err and done.err.count("\n") == 1, done
    shown = console.here("settings", "show", app, "--json").json
    assert shown["live"] == {}, shown
    assert console.here("settings", "set", app, "balancing-factor=2").code == 0
    fleet.terminate()
    assert console.end(fleet) == 0, console.said("run")


def test_what_was_set_is_named_where_another_value_was_given(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever gave it; nothing is to be read of what was not given, is the same, or is no setting of a group that runs."""
    monkeypatch.chdir(console.folder)
    console.write("orchestrator.toml", 'max-learners = "3"\nbalancing-factor = "2"\nheartbeat = "1s"\n')
    monkeypatch.setenv("ORCHESTRATOR_RELEASE_TIMEOUT", "8s")
    given = given_live({"standbys": "0", "protocol": "eager", "session-timeout": "9s"})
    configured = Settings(
        max_learners_per_instance=3, release_timeout_ms=8_000, balancing_factor=2, protocol=Protocol.EAGER
    )
    kept = {
        "standbys": "1",
        "max-learners": "3",
        "release-timeout": "9s",
        "protocol": "learner",
        "learner-timeout": "5s",
    }
    assert [line.partition("; ")[0] for line in passed_over(given, configured, kept, "bank")] == [
        "warning: --protocol eager has no effect: the group goes by `settings set protocol=learner`",
        "warning: --standbys 0 has no effect: the group goes by `settings set standbys=1`",
        "warning: ORCHESTRATOR_RELEASE_TIMEOUT=8s has no effect: the group goes by `settings set release-timeout=9s`",
    ]
    (line,) = passed_over(given, configured, {"balancing-factor": "4"}, "bank")
    assert line.startswith(
        "warning: orchestrator.toml: balancing-factor = 2 has no effect: the group goes by `settings set bal"
    )
    assert passed_over(given, configured, {}, "bank") == []


def test_an_app_is_looked_for_in_its_log(console: Console) -> None:
    console.pay(("a", 1))
    place = ("--log", "sqlite:.orchestrator/bank.db")
    shown = console.here("config", "show", "bank", *place)
    assert shown.code == 0 and "settings set" not in shown.out, shown
    for words, why in ((("nothing", *place), "no application 'nothing'"), (("bank", "--log", "sqlite:no.db"), "no.db")):
        refused = console.here("config", "show", *words)
        assert refused.code == 2 and why in refused.err, refused


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("set", "bank", "heartbeat=1s"), 2, "bounce the instances one by one with --heartbeat"),
        (("set", "bank", "standbyes=1"), 2, "it is no setting of the group"),
        (("set", "bank", "standbys=many"), 2, "standbys: "),
        (("set", "bank", "standbys="), 2, "or `unset NAME`"),
        (("set", "bank"), 2, "settings set: which"),
        (("unset", "bank", "standbys=1"), 2, "`unset NAME`"),
        (("show", "bank", "standbys"), 2, "it takes no settings"),
        (("set", "bank", "standbys=1"), 3, "no coordinator"),
    ],
)
def test_wrong_use(console: Console, words: tuple[str, ...], code: int, why: str) -> None:
    console.pay(("a", 1))
    done = console.here("settings", *words)
    assert done.code == code and why in done.err, done
