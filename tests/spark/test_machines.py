"""Instances on the machines of a Spark cluster that share no disk, no numbers of processes and no Python packages, on a Kafka
log: they run, crash, leave, stop and end with their driver there as on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.machines import FIRST, Machines, machines, until, why_not
from tests.spark.place import Place, parent
from workers.journal import read_journals

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes]
REASON = why_not()


class TwoMachines(Place):
    """The cluster, a broker on its first machine, and a fleet."""

    def __init__(self, found: Machines) -> None:
        shared = found.home / "shared"
        shared.mkdir()
        super().__init__(found.home, shared, found.names[0], FIRST)
        self.machines = found

    def run(self, *conf: str) -> subprocess.Popen[bytes]:
        """The fleet of two, once both are members."""
        properties = {
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.locality.wait": "0",
            "spark.deploy.spreadOut": "true",
            **dict(word.split("=", 1) for word in conf),
        }
        fleet = self.machines.start(0, *self.fleet(self.machines.master, properties, self.home / "state"))
        self.until("two instances", lambda: len(self.hosts()) == 2, fleet)
        return fleet

    def until(self, what: str, is_so: Any, fleet: subprocess.Popen[bytes]) -> None:
        until(what, is_so, fleet, self.machines)

    def instances(self) -> list[int]:
        """The processes of workers, one an instance, as this kernel counts them, on both machines."""
        return [pid for number in (0, 1) for pid in self.machines.running(number, "workers.worker.worker_main")]

    def parent(self, host: str) -> int:
        """The process of an instance on a machine."""
        [worker] = self.machines.running(int(host[1]) - 1, "workers.worker.worker_main")
        return parent(worker)

    def journal(self, host: str, instance: str) -> list[dict[str, Any]]:
        folder = self.machines.inside(int(host[1]) - 1, self.home / "state" / "bank" / instance)
        return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]

    def moves(self) -> list[str]:
        """Why tasks were handed over, from the journals of both machines."""
        folders = [self.machines.inside(number, self.home / "state" / "bank") for number in (0, 1)]
        rows = [row for folder in folders for row in read_journals(folder)]
        return [row["why"] for row in rows if row["what"] == "handed over"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TwoMachines]:
    if REASON:
        pytest.skip(REASON)
    with machines(tmp_path) as found:
        yield TwoMachines(found)


def test_jobs_that_send_no_app_send_this_project(place: TwoMachines) -> None:
    """A snapshot and a dry run of a backfill need no code of the app; on executors that have none of this project they ended with a
    ModuleNotFoundError."""
    place.pay(10)
    words = ["--snapshots", str(place.shared / "snapshots"), "--master", place.machines.master]
    for name, value in (place.archive | {"spark.driver.host": place.address, "spark.executor.memory": "512m"}).items():
        words += ["--conf", f"{name}={value}"]
    command = place.words("-m", "orchestrator", "snapshot", "bank", "--log", place.log, "--json", *words)
    done = subprocess.run(command, capture_output=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["tasks"] == 8 and made["entries"] == 0, made
    source = f"payments=log:{place.log}/payments"
    look = ("backfill", "bank:app", "--dry-run", "--from", source, "--log", place.log, "--json")
    done = subprocess.run(
        place.words("-m", "orchestrator", *look, *words), capture_output=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"][0]["rows"] == 10, done.stdout


def test_a_life_on_two_machines(place: TwoMachines) -> None:
    fleet = place.run()
    hosts = place.hosts()
    assert sorted(hosts.values()) == ["m1", "m2"], "an instance on each machine"
    place.pay(500)
    place.until("500 payments", lambda: place.balance("a7") == 10, fleet)

    # A crash: Spark starts it again.
    os.kill(place.parent("m2"), signal.SIGKILL)
    place.pay(500)
    place.until("it is back", lambda: len(place.instances()) == 2 and len(place.hosts()) == 2, fleet)
    place.until("1,000 payments", lambda: place.balance("a7") == 20, fleet)

    # Spark takes an executor away: what ran there hands over first, and goes on on another.
    far = next(name for name, host in place.hosts().items() if host == "m2")
    [executor] = place.machines.running(1, "CoarseGrainedExecutorBackend")
    before = len(place.journal("m2", far))
    os.kill(executor, signal.SIGPWR)
    place.until("another attempt", lambda: f"{far} ended because its host goes" in place.machines.log_of(fleet), fleet)
    since = place.journal("m2", far)[before:]
    assert since[-1]["what"] == "instance ended"
    assert any(why.startswith(f"{far} leaves") for why in place.moves()), "it has handed over"
    place.pay(500)
    place.until("two instances", lambda: len(place.instances()) == 2 and len(place.hosts()) == 2, fleet)
    place.until("1,500 payments", lambda: place.balance("a7") == 30, fleet)

    # A scale-down lets the task return: its slot is free for the next instance, of two in all.
    place.group("scale-down", "bank", "--to", "1", "--wait")
    place.until("one instance", lambda: len(place.instances()) == 1, fleet)
    place.group("scale-up", "bank", "--to", "2")
    place.until("two again", lambda: len(place.hosts()) == 2, fleet)
    place.pay(500)
    place.until("2,000 payments", lambda: place.balance("a7") == 40, fleet)

    ends = place.hosts()
    fleet.terminate()
    assert fleet.wait(90) == 0, place.machines.log_of(fleet)
    assert not place.instances()
    for name, host in ends.items():
        assert place.journal(host, name)[-1]["what"] == "instance ended", "in order"


def test_killed_stopped_and_left_alone(place: TwoMachines) -> None:
    """One that stands still, and two signals: it is killed in a machine whose numbers of processes mean nothing to the driver."""
    fleet = place.run()
    still = place.parent("m2")
    os.kill(still, signal.SIGSTOP)
    fleet.terminate()
    fleet.terminate()
    fleet.terminate()
    assert fleet.wait(90) == 0, place.machines.log_of(fleet)
    until("no process is left", lambda: not place.instances() and not Path(f"/proc/{still}").exists())

    fleet = place.run()
    fleet.kill()
    fleet.wait()
    until("the instances have ended with their driver", lambda: not place.instances())
