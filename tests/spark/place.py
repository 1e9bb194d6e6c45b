"""An app's folder on a cluster whose machines share one folder, with a broker beside it, and a fleet on executors there.

One rule: everything runs in the network of the cluster, and is asked as a user asks. Used by the tests of clusters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from pipeline.spark.packing import needed, pack
from state.log.kafka import broker
from state.private import publish
from tests.attacks.test_tls import certificate
from tests.spark.machines import ROOT

BROKER = """
import sys
from pathlib import Path
from state.log.kafka.broker import Broker
Broker(Path(sys.argv[1]), int(sys.argv[2])).launch()
"""
ARCHIVE = {"spark.pyspark.python": "./environment/bin/python"}


class Place:
    """`network`: a namespace, in which `address` is where executors reach the broker and the driver. `shared`: what every
    machine has at one path."""

    def __init__(self, home: Path, shared: Path, network: str, address: str) -> None:
        self.home = home
        self.shared = shared
        self.address = address
        self._network = network
        self.secret = shared / "bank.secret"
        publish(self.secret, Secret(Right.JOIN, os.urandom(KEY_BYTES)).text().encode())
        self.certificate, self.key = certificate(shared, "fleet")
        pack(shared / "env.tar.gz", needed())
        self.archive = ARCHIVE | {"spark.archives": f"{shared / 'env.tar.gz'}#environment"}
        (home / "bank.py").write_text((ROOT / "examples/bank.py").read_text())
        self.log = self._broker()

    def _broker(self) -> str:
        folder, port = self.home / "broker", broker.free_port()
        open_ = f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{port + 1}"
        settings = {"listeners": open_, "advertised.listeners": f"PLAINTEXT://{self.address}:{port}"}
        broker.prepare(folder, port, settings=settings)
        done = self.python("-c", BROKER, str(folder), str(port))
        assert done.returncode == 0, done
        return f"kafka://{self.address}:{port}"

    def words(self, *words: str) -> list[str]:
        """Python in the network of the cluster, in the app's folder."""
        inside = ["ip", "netns", "exec", self._network, "env", f"--chdir={self.home}", f"PYTHONPATH={ROOT}"]
        return [*inside, sys.executable, *words]

    def python(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.words(*words), input=stdin, capture_output=True, timeout=120, check=False)

    def ask(self, *words: str, stdin: bytes = b"", fails: bool = False) -> Any:
        """The answer of a command."""
        done = self.python("-m", "orchestrator", *words, "--log", self.log, "--json", stdin=stdin)
        if fails:
            return None if done.returncode else json.loads(done.stdout)
        assert done.returncode == 0, done
        return json.loads(done.stdout.splitlines()[-1])

    def group(self, *words: str, fails: bool = False) -> Any:
        return self.ask(*words, "--secret-file", str(self.secret), fails=fails)

    def fleet(self, master: str, conf: dict[str, str], state: Path) -> list[str]:
        """The command of a fleet of two."""
        words = ["run", "bank:app", "--on", "spark", "--master", master, "--instances", "2"]
        words += ["--log", self.log, "--state-dir", str(state), "--secret-file", str(self.secret)]
        words += ["--tls-cert", self.certificate, "--tls-key", self.key, "--session-timeout", "5s"]
        given = self.archive | {"spark.driver.host": self.address, "spark.executor.cores": "1"} | conf
        for name, value in given.items():
            words += ["--conf", f"{name}={value}"]
        return self.words("-m", "orchestrator", *words)

    def hosts(self) -> dict[str, str]:
        """Of the members, by instance."""
        status = self.group("status", "bank", fails=True)
        return {row["id"]: row["host"] for row in status["instances"]} if status is not None else {}

    def pay(self, count: int) -> None:
        lines = [
            json.dumps({"key": f"a{n % 50}", "value": {"account": f"a{n % 50}", "amount": 1}}) for n in range(count)
        ]
        self.ask("produce", "bank:app", "payments", stdin="\n".join(lines).encode())

    def balance(self, key: str) -> int | None:
        found = self.group("query", "bank", "balances", key, fails=True)
        return found["value"] if found is not None else None


def parent(pid: int) -> int:
    """The process that started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
