"""A Kubernetes cluster on this machine, in a network of its own: an API server, and a node whose pods are namespaces of Linux.
The driver, and a broker where a test needs one, are beside them in that network and reach pods at their addresses.

One rule: whatever was started is gone when it is taken down. For tests; needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from state.log.kafka import broker
from tests.spark import machines
from tests.spark.api_server import ApiServer, is_real, jars
from tests.spark.machines import ROOT, ip, processes
from tests.spark.node import GATEWAY, IMAGE, Node, Pod

CLONE_NEWNET = 0x40000000
NAMESPACE, ACCOUNT = "jobs", "spark"
LOOK_S = 0.1
MANIFEST = ROOT / "deploy/kubernetes/spark.yaml"


def why_not() -> str:
    """Why there can be no such cluster here; "" where there can."""
    return machines.why_not() or ("" if broker.java() else "Java is needed")


def _enter(network: str) -> None:
    """The calling thread, and what it starts, live in a network from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{network}").open("rb") as opened:
        if libc.setns(opened.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


class Kubernetes:
    """One node. `shared` is a folder that pods have through a claim, at the same path as here."""

    def __init__(self, home: Path, cores: float = 8) -> None:
        self.home = home
        self.shared = home / "shared"
        self.network = f"so{os.getpid()}k"
        self.server = ApiServer(home / "api", GATEWAY)
        self._thread = ThreadPoolExecutor(1)
        self._node_thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._started: list[subprocess.Popen[bytes]] = []
        self._cores = cores
        self.failure: Exception | None = None
        self.shared.mkdir()

    def set_up(self) -> None:
        if not is_real():
            jars()  # there is no way to them from the cluster's network
        ip("netns", "add", self.network)
        ip("-n", self.network, "link", "add", "br0", "type", "bridge")
        ip("-n", self.network, "address", "add", f"{GATEWAY}/24", "dev", "br0")
        for device in ("lo", "br0"):
            ip("-n", self.network, "link", "set", device, "up")
        self.here(_enter, self.network)
        self.here(self.server.start)
        self.here(self._prepare)
        self.node = Node(
            self.server.admin, NAMESPACE, self.home / "pods", self.network, self._cores, {"shared": self.shared}
        )
        self._node_thread = threading.Thread(target=self._watch, name="node", daemon=True)
        self._node_thread.start()

    def here(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function in the network of the cluster."""
        return self._thread.submit(function, *args).result()

    def api(self, *words: Any) -> Any:
        """A request with every right."""
        return self.here(self.server.admin, *words)

    def _prepare(self) -> None:
        """What an administrator does, and what a controller does for each namespace."""
        admin = self.server.admin
        admin("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        default = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        for found in (default, *yaml.safe_load_all(MANIFEST.read_text())):
            for subject in found.get("subjects", []):
                subject["namespace"] = NAMESPACE  # as kubectl does
            version = found["apiVersion"]
            path = f"/api/{version}" if "/" not in version else f"/apis/{version}"
            admin("POST", f"{path}/namespaces/{NAMESPACE}/{found['kind'].lower()}s", found)
        self.client = self.server.token(NAMESPACE, ACCOUNT)
        self.kubeconfig = self.client.kubeconfig(self.home / "kubeconfig")

    def _watch(self) -> None:
        _enter(self.network)
        while not self._ending.wait(LOOK_S):
            try:
                self.node.look()
            except Exception as error:  # noqa: BLE001 - shown by `logs`
                self.failure = error

    # ---- beside it

    @property
    def master(self) -> str:
        return f"k8s://{self.server.admin.url}"

    @property
    def conf(self) -> dict[str, str]:
        """What a command is given."""
        claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.shared"
        return {
            "spark.kubernetes.container.image": IMAGE,
            "spark.kubernetes.namespace": NAMESPACE,
            f"{claim}.mount.path": str(self.shared),
            f"{claim}.options.claimName": "shared",
            "spark.driver.host": GATEWAY,
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
        }

    def pods(self) -> dict[str, Pod]:
        """Those that were started and are not gone."""
        return dict(self.node.pods)

    def logs(self) -> str:
        """The ends of all logs, pods' too."""
        logs = [f"{pod.name}: {pod.log()[-3_000:]}" for pod in self.node.all]
        return "\n".join([f"node: {self.failure!r}", *logs, self.server.log()])

    def take_down(self) -> None:
        self._ending.set()
        if self._node_thread is not None:
            self._node_thread.join()
            self.node.take_down()
        with contextlib.suppress(Exception):
            self.here(self.server.stop)
        self._thread.shutdown()
        for pid in processes(self.network):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ip("netns", "del", self.network)


@contextlib.contextmanager
def kubernetes(home: Path, cores: float = 8) -> Iterator[Kubernetes]:
    """The cluster, while the block lasts."""
    found = Kubernetes(home, cores)
    try:
        found.set_up()
        yield found
    finally:
        found.take_down()
