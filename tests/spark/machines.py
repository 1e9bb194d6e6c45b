"""Two machines of a Spark cluster out of what Linux has: each a network namespace, with numbers of processes, a name and a
state folder of its own. Executors there find Java, Python and Spark, and neither this repository nor its environment.

One rule: whatever was started in a machine is gone when it is taken down. The first one is the master's, the broker's and the
driver's, too. For tests; needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FIRST, SECOND = "10.77.16.1", "10.77.16.2"
MASTER_PORT = 17077
DEADLINE_S = 90.0
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
MACHINE = """
set -e
mount --make-rprivate /
hostname {name}
mkdir -p {home}/spark {home}/state
mount --bind {spark} {home}/spark
mount -t tmpfs none {home}/state
for hidden in {hidden}; do mount -t tmpfs none "$hidden"; done
export SPARK_HOME={home}/spark SPARK_LOCAL_IP={address} PATH={path}
cd {home}
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker spark://{first}:{port} --host {address} \\
  --cores 2 --memory 2g --work-dir {home}/work-{name} --webui-port 0
"""


def why_not() -> str:
    """Why there can be no such machines here; "" where they can."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "namespaces need root on Linux"
    if not all(shutil.which(tool) for tool in ("ip", "unshare", "openssl", "java")):
        return "ip, unshare, openssl and java are needed"
    if python_of_machines() is None:
        return f"there is no {VERSION} here without our packages"
    probe = f"so{os.getpid()}p"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"namespaces cannot be made: {made.stderr.decode().strip()}"


def python_of_machines() -> Path | None:
    """The folder of a Python that has none of our packages."""
    for folder in (Path("/usr/bin"), Path(sys.base_prefix) / "bin"):
        found = folder / VERSION
        if found.exists():
            tried = subprocess.run([found, "-I", "-c", "import msgspec"], capture_output=True, check=False)
            if tried.returncode:
                return folder
    return None


class Machines:
    """A standalone cluster of two workers with two slots each."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.names = [f"so{os.getpid()}{letter}" for letter in "ab"]
        self._started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{FIRST}:{MASTER_PORT}"

    def set_up(self) -> None:
        a, b = self.names
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b)
        for name, address in zip(self.names, (FIRST, SECOND), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        spark = Path(str(find_spec("pyspark").origin)).parent  # type: ignore[union-attr]
        environment = {"SPARK_HOME": str(spark), "SPARK_LOCAL_IP": FIRST}
        master = [str(spark / "bin/spark-class"), "org.apache.spark.deploy.master.Master", "--host", FIRST]
        self.start(0, *master, "--port", str(MASTER_PORT), "--webui-port", "0", **environment)
        self.workers = [self._worker(number, spark) for number in (0, 1)]

    def _worker(self, number: int, spark: Path) -> subprocess.Popen[bytes]:
        script = MACHINE.format(
            name=f"m{number + 1}",
            home=self.home,
            spark=spark,
            hidden=" ".join(dict.fromkeys([sys.prefix, str(ROOT)])),  # one may lie in the other
            address=(FIRST, SECOND)[number],
            first=FIRST,
            port=MASTER_PORT,
            path=f"{python_of_machines()}:/usr/bin:/bin",
        )
        apart = ("unshare", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child")
        return self.start(number, *apart, "bash", "-c", script)

    def start(self, number: int, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process in the network of a machine; what it prints is in `<n>.log` of the home folder."""
        with (self.home / f"{len(self._started)}.log").open("ab") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[number], *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        return (self.home / f"{self._started.index(process)}.log").read_text(errors="replace")

    def pids(self, number: int) -> list[int]:
        """All processes of a machine."""
        return processes(self.names[number])

    def running(self, number: int, word: str) -> list[int]:
        """Those whose command line has a word."""
        return [pid for pid in self.pids(number) if word in command(pid)]

    def inside(self, number: int, path: Path) -> Path:
        """A path as the worker's machine has it."""
        java = self.running(number, "deploy.worker.Worker")
        return Path(f"/proc/{java[-1]}/root{path}")

    def take_down(self) -> None:
        for number in (1, 0):
            for pid in self.pids(number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        for name in self.names:
            ip("netns", "del", name)


def command(pid: int) -> str:
    """The command line of a process; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def ip(*words: str) -> str:
    """What `ip` answers."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def processes(namespace: str) -> list[int]:
    """All processes of a network namespace."""
    return [int(word) for word in ip("netns", "pids", namespace).split()]


@contextlib.contextmanager
def machines(home: Path) -> Iterator[Machines]:
    """The cluster, while the block lasts."""
    found = Machines(home)
    try:
        found.set_up()
        yield found
    finally:
        found.take_down()


def until(
    what: str,
    is_so: object,
    process: subprocess.Popen[bytes] | None = None,
    found: Machines | None = None,
    within_s: float = DEADLINE_S,
) -> None:
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + within_s
    while not is_so():  # type: ignore[operator]
        said = found.log_of(process) if found is not None and process is not None else ""
        assert process is None or process.poll() is None, f"{what}: it has ended; {said}"
        assert time.monotonic() < deadline, f"{what}: not after {within_s:.0f} s; {said}"
        time.sleep(0.1)
