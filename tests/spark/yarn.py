"""YARN on this machine: Hadoop's ResourceManager and one NodeManager, from jars of Maven Central and those that come with PySpark.
Containers find Java, Python and Spark, and neither this repository nor its environment.

One rule: whatever was started is gone when it is taken down. For tests; needs root.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from state.log.kafka import broker
from tests.spark.jars import SPARK, fetched, version_beside
from tests.spark.machines import ROOT, python_of_machines

BOUNCY_CASTLE = "1.82"  # Hadoop's proxy makes certificates with it
DEADLINE_S = 120.0
REGISTERED = "registered with capability"
CLASSES = "org.apache.hadoop.yarn.server"
RESOURCES, NODE = "resourcemanager.ResourceManager", "nodemanager.NodeManager"
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""
APART = """
set -e
mount --make-rprivate /
mkdir -p {spark}
mount --bind {wheel} {spark}
for hidden in {hidden}; do mount -t tmpfs none "$hidden"; done
export PATH={path}
cd {home}
exec {java} {words}
"""


def why_not() -> str:
    """Why YARN cannot be had here; "" where it can."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "namespaces need root on Linux"
    if broker.java() is None or python_of_machines() is None:
        return "Java, and a Python without our packages, are needed"
    return ""


def jars() -> Path:
    """What Hadoop's servers need and PySpark does not bring, of the version of Spark's own Hadoop."""
    version = version_beside("hadoop-client-api")
    return fetched(
        f"yarn-{version}",
        ("org.apache.hadoop", "hadoop-client-minicluster", version, ["-notransitive"]),
        ("org.bouncycastle", "bcpkix-jdk18on", BOUNCY_CASTLE, []),
    )


class Yarn:
    """One node with room for a driver's master and two executors. `environment` is what a client needs to find it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spark = home / "spark"  # as containers have it
        self._conf = home / "conf"
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self._conf)}

    def set_up(self) -> None:
        for folder in ("conf/webapps/cluster", "conf/webapps/node", "conf/webapps/static", "local", "logs"):
            (self.home / folder).mkdir(parents=True)
        (self._conf / "core-site.xml").write_text(_site({"fs.defaultFS": "file:///"}))
        (self._conf / "log4j2.properties").write_text(LOGGING)
        (self._conf / "yarn-site.xml").write_text(_site(self._settings()))
        self._start(RESOURCES, ["bash", "-c", 'exec "$0" "$@"', str(broker.java())])
        script = APART.format(
            spark=self.spark,
            wheel=SPARK,
            hidden=" ".join([sys.prefix, str(ROOT)]),  # one may lie in the other
            path=f"{python_of_machines()}:/usr/bin:/bin",
            home=self.home,
            java=broker.java(),
            words='"$@"',
        )
        self._start(NODE, ["unshare", "--mount", "--fork", "--kill-child", "bash", "-c", script, "-"])
        deadline = time.monotonic() + DEADLINE_S
        while REGISTERED not in self.log(RESOURCES):
            ended = [process.args for process in self._started if process.poll() is not None]
            assert not ended and time.monotonic() < deadline, self.said()
            time.sleep(0.1)  # between two looks: the log of another program has no event

    def _settings(self) -> dict[str, str]:
        ports = {name: broker.free_port() for name in ("address", "scheduler", "resource-tracker", "admin", "webapp")}
        found = {"yarn.resourcemanager.hostname": "127.0.0.1", "yarn.nodemanager.hostname": "127.0.0.1"}
        for name, port in ports.items():
            middle = "" if name == "address" else f"{name}."
            found[f"yarn.resourcemanager.{middle}address"] = f"127.0.0.1:{port}"
        for name in ("address", "localizer.address", "webapp.address"):
            found[f"yarn.nodemanager.{name}"] = f"127.0.0.1:{broker.free_port()}"
        return found | {
            "yarn.resourcemanager.scheduler.class": f"{CLASSES}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.nodemanager.local-dirs": str(self.home / "local"),
            "yarn.nodemanager.log-dirs": str(self.home / "logs"),
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }

    def _start(self, name: str, before: list[str]) -> None:
        spark = self.spark if "unshare" in before else SPARK
        classpath = os.pathsep.join([str(self._conf), f"{jars()}/*", f"{spark}/jars/*"])
        logging = f"-Dlog4j2.configurationFile={self._conf / 'log4j2.properties'}"
        command = [*before, "-Xmx256m", logging, "-cp", classpath, f"{CLASSES}.{name}"]
        with (self.home / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "YARN_CONF_DIR": str(self._conf)},
                start_new_session=True,
            )
        self._started.append(process)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def said(self) -> str:
        """The ends of all logs, containers' too."""
        logs = [*self.home.glob("*.log"), *(self.home / "logs").rglob("stderr")]
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-2_000:]}" for path in logs)

    def take_down(self) -> None:
        """Containers are sessions of their own: they end with the application, and here by their folder at the latest."""
        for process in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in self.containers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def containers(self) -> list[int]:
        """Processes that run in a folder of a container."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((path / "cwd").readlink()).startswith(str(self.home / "local")):
                    found.append(int(path.name))
        return found


def _site(settings: dict[str, str]) -> str:
    rows = (f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in settings.items())
    return f"<configuration>\n{''.join(rows)}</configuration>\n"


@contextlib.contextmanager
def yarn(home: Path) -> Iterator[Yarn]:
    """The cluster, while the block lasts."""
    found = Yarn(home)
    try:
        found.set_up()
        yield found
    finally:
        found.take_down()
