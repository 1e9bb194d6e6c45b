"""Instances on the machines of a Spark cluster that share no disk, no numbers of processes and no Python packages, on a Kafka
log: they run, crash, leave, stop and end with their driver there as on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from pipeline.spark.packing import needed, pack
from state.log.kafka import broker
from state.private import publish
from tests.attacks.test_tls import certificate
from tests.spark.machines import FIRST, ROOT, Machines, machines, until, why_not
from workers.journal import read_journals

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes]
REASON = why_not()
BROKER = """
import sys
from pathlib import Path
from state.log.kafka.broker import Broker
Broker(Path(sys.argv[1]), int(sys.argv[2])).launch()
"""


class Place:
    """The cluster, a broker on its first machine, and what every machine has at one path."""

    def __init__(self, found: Machines) -> None:
        self.machines = found
        self.home = found.home
        self.shared = found.home / "shared"
        self.shared.mkdir()
        self.secret = self.shared / "bank.secret"
        publish(self.secret, Secret(Right.JOIN, os.urandom(KEY_BYTES)).text().encode())
        self.certificate, self.key = certificate(self.shared, "fleet")
        pack(self.shared / "env.tar.gz", needed())
        (self.home / "bank.py").write_text((ROOT / "examples/bank.py").read_text())
        self.log = self._broker()

    def _broker(self) -> str:
        folder, port = self.home / "broker", broker.free_port()
        open_ = f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{port + 1}"
        settings = {"listeners": open_, "advertised.listeners": f"PLAINTEXT://{FIRST}:{port}"}
        broker.prepare(folder, port, settings=settings)
        done = self._inside("-c", BROKER, str(folder), str(port))
        assert done.returncode == 0, done
        return f"kafka://{FIRST}:{port}"

    def _inside(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["ip", "netns", "exec", self.machines.names[0], sys.executable, *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=self.home, env=environment, input=stdin, capture_output=True, timeout=120, check=False
        )

    def ask(self, *words: str, stdin: bytes = b"", fails: bool = False) -> Any:
        """The answer of a command on the first machine."""
        done = self._inside("-m", "orchestrator.cli.main", *words, "--log", self.log, "--json", stdin=stdin)
        if fails:
            return None if done.returncode else json.loads(done.stdout)
        assert done.returncode == 0, done
        return json.loads(done.stdout.splitlines()[-1])

    def group(self, *words: str, fails: bool = False) -> Any:
        return self.ask(*words, "--secret-file", str(self.secret), fails=fails)

    def run(self, *conf: str) -> subprocess.Popen[bytes]:
        """The fleet of two, once both are members."""
        properties = {
            "spark.archives": f"{self.shared / 'env.tar.gz'}#environment",
            "spark.pyspark.python": "./environment/bin/python",
            "spark.driver.host": FIRST,
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.locality.wait": "0",
            "spark.deploy.spreadOut": "true",
            **dict(word.split("=", 1) for word in conf),
        }
        words = ["run", "bank:app", "--on", "spark", "--master", self.machines.master, "--instances", "2"]
        words += ["--log", self.log, "--state-dir", str(self.home / "state"), "--secret-file", str(self.secret)]
        words += ["--tls-cert", self.certificate, "--tls-key", self.key, "--session-timeout", "5s"]
        for name, value in properties.items():
            words += ["--conf", f"{name}={value}"]
        command = ["env", f"--chdir={self.home}", f"PYTHONPATH={ROOT}", sys.executable, "-m", "orchestrator.cli.main"]
        fleet = self.machines.start(0, *command, *words)
        self.until("two instances", lambda: len(self.hosts()) == 2, fleet)
        return fleet

    def until(self, what: str, is_so: Any, fleet: subprocess.Popen[bytes]) -> None:
        until(what, is_so, fleet, self.machines)

    def hosts(self) -> dict[str, str]:
        """Of the members, by instance."""
        status = self.group("status", "bank", fails=True)
        return {row["id"]: row["host"] for row in status["instances"]} if status is not None else {}

    def instances(self) -> list[int]:
        """The processes of workers, one an instance, as this kernel counts them, on both machines."""
        return [pid for number in (0, 1) for pid in self.machines.running(number, "workers.worker.worker_main")]

    def parent(self, host: str) -> int:
        """The process of an instance on a machine."""
        [worker] = self.machines.running(int(host[1]) - 1, "workers.worker.worker_main")
        return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])

    def journal(self, host: str, instance: str) -> list[dict[str, Any]]:
        folder = self.machines.inside(int(host[1]) - 1, self.home / "state" / "bank" / instance)
        return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]

    def moves(self) -> list[str]:
        """Why tasks were handed over, from the journals of both machines."""
        folders = [self.machines.inside(number, self.home / "state" / "bank") for number in (0, 1)]
        rows = [row for folder in folders for row in read_journals(folder)]
        return [row["why"] for row in rows if row["what"] == "handed over"]

    def pay(self, count: int) -> None:
        lines = [
            json.dumps({"key": f"a{n % 50}", "value": {"account": f"a{n % 50}", "amount": 1}}) for n in range(count)
        ]
        self.ask("produce", "bank:app", "payments", stdin="\n".join(lines).encode())

    def balance(self, key: str) -> int | None:
        found = self.group("query", "bank", "balances", key, fails=True)
        return found["value"] if found is not None else None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if REASON:
        pytest.skip(REASON)
    with machines(tmp_path) as found:
        yield Place(found)


def test_a_life_on_two_machines(place: Place) -> None:
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


def test_killed_stopped_and_left_alone(place: Place) -> None:
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
