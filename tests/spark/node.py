"""A node of a Kubernetes cluster out of what Linux has, and the scheduler that gives it pods: each pod is a network, mount, name
and process namespace in which the command of Spark's image runs. A pod finds Java, Python and Spark, its volumes, and neither this
repository nor its environment.

One rule: it learns of pods from the API server alone, and reports there. A pod that is deleted gets what a kubelet gives it: its
hook, SIGTERM, and SIGKILL at the end of its grace. For tests; needs root.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.spark.api_server import MERGE, Api, Refused
from tests.spark.jars import SPARK
from tests.spark.machines import ROOT, command, ip, processes, python_of_machines

IMAGE = "spark-python"  # the one that its registry has
GATEWAY, ADDRESSES = "10.77.18.1", "10.77.18."
HOOK = "/opt/decom.sh"  # of Spark's image: SIGPWR to the executor, then wait for its end
# A folder is bound under /mnt before what lies above it is hidden. The first one is the image's Spark: what a pod writes there is its own.
POD = """
set -e
mount --make-rprivate /
hostname {hostname}
mount -t tmpfs none /mnt
number=0
for source in {sources}; do mkdir /mnt/$number; mount --bind "$source" /mnt/$number; number=$((number + 1)); done
mount --bind {hosts} /etc/hosts
for hidden in {hidden}; do mount -t tmpfs none "$hidden"; done
mkdir -p /opt/spark /mnt/upper/work-dir /mnt/work
mount -t overlay overlay -o lowerdir=/mnt/0,upperdir=/mnt/upper,workdir=/mnt/work /opt/spark
number=1
for target in {targets}; do mkdir -p "$target"; mount --bind /mnt/$number "$target"; number=$((number + 1)); done
cd /opt/spark/work-dir
set +e
"$@"
exit $?
"""


class Pod:
    """One that was started here."""

    def __init__(self, name: str, hostname: str, number: int, home: Path) -> None:
        self.name = name
        self.hostname = hostname
        self.network = f"so{os.getpid()}p{number}"
        self.address = f"{ADDRESSES}{number}"
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.cores = 0.0
        self.hook = False
        self.kill_at = 0.0  # once it is being deleted
        self.grace_s = 30.0
        self.reported = ""

    @property
    def java(self) -> int | None:
        """Its executor's process, as this kernel counts it."""
        for pid in processes(self.network):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name == "java":
                    return pid
        return None

    def running(self, word: str) -> list[int]:
        """Its processes whose command line has a word."""
        return [pid for pid in processes(self.network) if word in command(pid)]

    def log(self) -> str:
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self) -> None:
        """All of it, at once."""
        for pid in processes(self.network):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        ip("netns", "del", self.network)


class Node:
    """Looks at the pods of one namespace, again and again. `claims`: folders by name of a claim."""

    def __init__(
        self, api: Api, namespace: str, home: Path, bridge: str, cores: float, claims: dict[str, Path]
    ) -> None:
        self.path = f"/api/v1/namespaces/{namespace}"
        self.home = home
        self.cores = cores
        self.pods: dict[str, Pod] = {}
        self.all: list[Pod] = []
        self._api = api
        self._namespace = namespace
        self._bridge = bridge
        self._claims = claims
        self._waiting: dict[str, str] = {}

    def look(self) -> None:
        """One look, and all that follows from it."""
        listed = {pod["metadata"]["name"]: pod for pod in self._api("GET", f"{self.path}/pods")["items"]}
        for name, pod in listed.items():
            if name not in self.pods and "deletionTimestamp" not in pod["metadata"]:
                self._take(pod)
        for name, held in list(self.pods.items()):
            found = listed.get(name)
            self._follow(held, found)
        for name in set(self._waiting) - set(listed):
            del self._waiting[name]

    # ---- from pending to running

    def _take(self, pod: dict[str, Any]) -> None:
        [container] = pod["spec"]["containers"]
        wanted = _cores(container)
        if sum(held.cores for held in self.pods.values() if not held.reported) + wanted > self.cores:
            why = "0/1 nodes are available: 1 Insufficient cpu."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            self._wait(pod, {"phase": "Pending", "conditions": [condition]}, why)
            return
        if container["image"] != IMAGE:
            why = f'Back-off pulling image "{container["image"]}"'
            state = {"waiting": {"reason": "ImagePullBackOff", "message": why}}
            self._wait(pod, {"phase": "Pending", "containerStatuses": [_status(container, state)]}, why)
            return
        self._start(pod, container)

    def _wait(self, pod: dict[str, Any], status: dict[str, Any], why: str) -> None:
        name = pod["metadata"]["name"]
        if self._waiting.get(name) != why:
            self._waiting[name] = why
            self._report(name, status)

    def _start(self, pod: dict[str, Any], container: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        number = len(self.all) + 2
        held = Pod(name, pod["spec"]["hostname"], number, self.home / f"{number}-{name}")
        held.home.mkdir(parents=True)
        held.hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command") == [HOOK]
        held.grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        held.cores = _cores(container)
        self._connect(held)
        self.pods[name] = held
        self.all.append(held)
        (held.home / "hosts").write_text(f"127.0.0.1 localhost\n{held.address} {held.hostname}\n")
        mounts = self._mounts(pod, container, held)
        hidden = [sys.prefix, ROOT, "/tmp", "/opt"]
        script = POD.format(
            hostname=held.hostname,
            sources=" ".join(str(source) for source in (SPARK, *mounts.values())),
            targets=" ".join(mounts),
            hosts=held.home / "hosts",
            hidden=" ".join(dict.fromkeys(str(one) for one in hidden if Path(one).is_dir())),
        )
        environment = self._environment(container, held)
        apart = [
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "bash",
            "-c",
            script,
            "-",
        ]
        with (held.home / "log").open("ab") as out:
            held.process = subprocess.Popen(
                ["ip", "netns", "exec", held.network, *apart, *_command(environment)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        state = {"running": {"startedAt": _now()}}
        self._report(
            name,
            {"phase": "Running", "podIP": held.address, "containerStatuses": [_status(container, state, ready=True)]},
        )

    def _connect(self, pod: Pod) -> None:
        ip("netns", "add", pod.network)
        outer = f"v{pod.network}"
        ip("-n", self._bridge, "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", pod.network)
        ip("-n", self._bridge, "link", "set", outer, "master", "br0", "up")
        ip("-n", pod.network, "address", "add", f"{pod.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", pod.network, "link", "set", device, "up")

    def _mounts(self, pod: dict[str, Any], container: dict[str, Any], held: Pod) -> dict[str, Path]:
        """Folders of this machine by where the pod has them."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        found: dict[str, Path] = {}
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            if "persistentVolumeClaim" in volume:
                found[mount["mountPath"]] = self._claims[volume["persistentVolumeClaim"]["claimName"]]
            elif "hostPath" in volume:
                found[mount["mountPath"]] = Path(volume["hostPath"]["path"])
            elif "configMap" in volume or "emptyDir" in volume or "secret" in volume:
                folder = found[mount["mountPath"]] = held.home / mount["name"]
                folder.mkdir(exist_ok=True)
                self._fill(folder, volume)
        return found

    def _fill(self, folder: Path, volume: dict[str, Any]) -> None:
        if "configMap" in volume:
            data = self._api("GET", f"{self.path}/configmaps/{volume['configMap']['name']}").get("data", {})
            for name, text in data.items():
                (folder / name).write_text(text)
        elif "secret" in volume:
            data = self._api("GET", f"{self.path}/secrets/{volume['secret']['secretName']}").get("data", {})
            for name, text in data.items():
                (folder / name).write_bytes(base64.b64decode(text))
                (folder / name).chmod(0o400)

    def _environment(self, container: dict[str, Any], held: Pod) -> dict[str, str]:
        """The image's, then the container's."""
        found = {"PATH": f"{python_of_machines()}:/usr/bin:/bin", "SPARK_HOME": "/opt/spark", "HOME": "/nonexistent"}
        fields = {"status.podIP": held.address, "metadata.name": held.name}
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[variable["name"]] = fields[source] if source else variable.get("value", "")
        return found

    # ---- from running to gone

    def _follow(self, held: Pod, listed: dict[str, Any] | None) -> None:
        process = held.process
        assert process is not None
        if process.poll() is not None and not held.reported and listed is not None:
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            held.reported = "Succeeded" if code == 0 else "Failed"
            [container] = listed["spec"]["containers"]
            state = {
                "terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": _now()}
            }
            self._report(held.name, {"phase": held.reported, "containerStatuses": [_status(container, state)]})
        if listed is not None and "deletionTimestamp" not in listed["metadata"]:
            return
        if process.poll() is None:
            self._end(held)
            return
        if listed is not None:
            gone = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            with contextlib.suppress(Refused):
                self._api("DELETE", f"{self.path}/pods/{held.name}", gone)
        held.end()
        del self.pods[held.name]

    def _end(self, held: Pod) -> None:
        """What a kubelet does, a step with each look."""
        now = time.monotonic()
        java = held.java
        if not held.kill_at:
            held.kill_at = now + held.grace_s
            if java is not None:
                os.kill(java, signal.SIGPWR if held.hook else signal.SIGTERM)
        elif now > held.kill_at:
            for pid in processes(held.network):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _report(self, name: str, status: dict[str, Any]) -> None:
        with contextlib.suppress(Refused):  # the pod is gone
            self._api("PATCH", f"{self.path}/pods/{name}/status", {"status": status}, MERGE)

    def take_down(self) -> None:
        for held in self.pods.values():
            held.end()
        self.pods.clear()


def _command(environment: dict[str, str]) -> list[str]:
    """What the entry point of Spark's image runs for `executor`."""
    options = sorted(
        (name for name in environment if name.startswith("SPARK_JAVA_OPT_")), key=lambda name: int(name[15:])
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    path = f"{environment.get('SPARK_CONF_DIR', '/opt/spark/conf')}:{environment.get('SPARK_CLASSPATH', '')}:/opt/spark/jars/*"
    given = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    words = [word for name, variable in given.items() for word in (f"--{name}", environment[variable])]
    java = ["java", *(environment[name] for name in options), f"-Xms{memory}", f"-Xmx{memory}", "-cp", path]
    return [*java, "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", *words]


def _status(container: dict[str, Any], state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": ready,
        "restartCount": 0,
        "state": state,
    }


def _cores(container: dict[str, Any]) -> float:
    text = str(container.get("resources", {}).get("requests", {}).get("cpu", "1"))
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
