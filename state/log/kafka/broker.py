"""A Kafka broker on this machine for developers and tests: Kafka's own jars, one node, up in two seconds.

One rule: it is a real broker, and for nothing that must last: one copy of everything, sessions of a second. Jars are
fetched once into the user's cache folder, through Ivy (it comes with PySpark). Its ports lie below 32768: above, a probe
of a port without a listener may connect to itself.
"""

from __future__ import annotations

import base64
import fcntl
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from state.clocks import monotonic_s
from state.errors import StateError
from state.user_cache import user_cache

VERSION = "4.3.0"
PORT = 9092
PORTS = range(1, 65_535)  # and one behind it
UP_WITHIN_S = 60.0
_PORTS = range(20_000, 32_000, 2)
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.backoff.ms=100
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
controlled.shutdown.enable=false
controller.quorum.election.timeout.ms=200
controller.quorum.election.backoff.max.ms=100
controller.quorum.append.linger.ms=5
"""
_SINCE_4 = "share.coordinator.state.topic.replication.factor=1\nshare.coordinator.state.topic.min.isr=1\n"
_LOGGING = """\
<Configuration><Appenders><Console name="out"><PatternLayout pattern="[%d] %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class BrokerUnusable(StateError):
    """A broker cannot be started here: no Java, no jars, a port that is taken."""


def java(tool: str = "java") -> str | None:
    """A tool of Java: from JAVA_HOME, from the path; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / tool if home else None
    return str(beside) if beside and beside.exists() else shutil.which(tool)


def jars(module: str = "kafka_2.13", version: str = VERSION) -> Path:
    """The folder with the jars of a module of Kafka, fetched once: by one process, for which others wait. Raises BrokerUnusable."""
    folder = user_cache() / f"{module.partition('_')[0]}-{version}"
    if (folder / "complete").exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return folder if (folder / "complete").exists() else _fetched(folder, module, version)
    except OSError as error:
        raise BrokerUnusable(f"Kafka's jars cannot be kept in {folder}: {error.strerror}") from None


def _fetched(folder: Path, module: str, version: str) -> Path:
    program, spark = java(), find_spec("pyspark")
    if program is None:
        raise BrokerUnusable("Kafka needs Java, and none is in JAVA_HOME or on the path: install one, 17 or newer")
    if spark is None or spark.origin is None:
        raise BrokerUnusable(
            f"Kafka's jars are not in {folder}, and nothing here can fetch them: install the extra 'spark' "
            "(Ivy comes with PySpark), or put the jars there and an empty file named 'complete'"
        )
    ivy = next((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))
    command = [program, "-jar", str(ivy), "-dependency", "org.apache.kafka", module, version]
    command += ["-confs", "default", "-cache", str(user_cache() / "ivy"), "-types", "jar", "bundle"]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        raise BrokerUnusable(f"Kafka's jars were not fetched within 600 s: put them into {folder}") from None
    if done.returncode:
        raise BrokerUnusable(
            f"Kafka {version} could not be fetched ({_reason(done.stdout + done.stderr)}): its jars are kept in {folder}, with an "
            "empty file named 'complete'; put them there, or let this machine reach Maven's repository"
        )
    (folder / "complete").touch()
    return folder


def _reason(output: str) -> str:
    """The line of Ivy's output that says why: its last one says nothing, and what it calls not found may lie on a server that does not
    answer."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    for sign in ("Server access error", "Host ", "not found"):
        if found := [line for line in lines if sign in line]:
            return found[0]
    return next(filter(None, reversed(lines)), "no reason given")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One at a time begins or ends what is in the folder: two that prepared it at once removed what the other had formatted. Raises BrokerUnusable."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock").open("w")
    except OSError as error:
        raise BrokerUnusable(f"{folder} cannot be used: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Broker:
    """A broker in a folder: its settings, its log, its process's number. It goes on when its starter ends."""

    folder: Path
    port: int
    version: str = VERSION
    options: tuple[str, ...] = ()  # of Java, beside ours

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process that runs it now; None where none does. Another program may have its number since the machine began anew."""
        try:
            found = int((self.folder / "pid").read_text())
            words = (
                Path(f"/proc/{found}/cmdline").read_bytes().split(b"\0")
            )  # of one that has ended, and is not reaped, none
        except (OSError, ValueError):
            return None
        own = os.path.realpath(os.fsencode(self.folder / "server.properties"))  # a folder has several paths
        return found if any(word.endswith(b".properties") and os.path.realpath(word) == own for word in words) else None

    def launch(self, within_s: float = UP_WITHIN_S) -> float:
        """Start the process and wait until the broker answers; how long it took. Raises BrokerUnusable."""
        began = monotonic_s()
        with (self.folder / "broker.out").open("ab") as out:
            process = subprocess.Popen(
                [
                    *_command(self.folder, self.version, self.options),
                    "kafka.Kafka",
                    str(self.folder / "server.properties"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (self.folder / "pid").write_text(str(process.pid))
        while not answers(self.port):
            if process.poll() is not None:
                raise BrokerUnusable(f"the broker ended as it was started: {self.folder / 'broker.out'} says why")
            if monotonic_s() - began > within_s:
                raise BrokerUnusable(f"the broker does not answer after {within_s:.0f} s: {self.folder / 'broker.out'}")
            time.sleep(0.05)
        return monotonic_s() - began

    def stop(self, *, kill: bool = False, within_s: float = UP_WITHIN_S) -> bool:
        """End the process, in order or with SIGKILL; whether there was one. Raises BrokerUnusable."""
        pid = self.pid
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        deadline = monotonic_s() + within_s
        while self.pid == pid:
            if monotonic_s() > deadline:
                raise BrokerUnusable(f"the broker (process {pid}) does not end")
            _reap(pid)
            time.sleep(0.02)
        return True


def prepare(
    folder: Path,
    port: int | None = None,
    *,
    version: str = VERSION,
    settings: Mapping[str, str] | None = None,
    scram: Mapping[str, str] | None = None,
    cluster: str | None = None,
    options: tuple[str, ...] = (),
) -> Broker:
    """A new broker in `folder`, formatted and not started; what an earlier one left there is removed. `settings` come after
    our own and above them; `scram` are passwords by user; `cluster` is the id of one with several brokers; `options` are Java's.
    Raises BrokerUnusable."""
    if java() is None:
        raise BrokerUnusable("Kafka needs Java, and none is in JAVA_HOME or on the path: install one, 17 or newer")
    jars(version=version)
    port = free_port() if port is None else port
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = _SETTINGS.format(port=port, controller=port + 1, folder=folder / "log")
    text += "" if version.startswith("3.") else _SINCE_4
    text += "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    (folder / "server.properties").write_text(text)
    (folder / "log4j2.xml").write_text(_LOGGING)
    (folder / "broker.version").write_text(f"{version} {port}")
    command = [*_command(folder, version, options), "kafka.tools.StorageTool", "format", "-t", cluster or identity()]
    for user, password in (scram or {}).items():
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            command += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
    done = subprocess.run(
        [*command, "-c", str(folder / "server.properties")], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise BrokerUnusable(f"{folder} could not be formatted for Kafka: {done.stdout[-500:]}{done.stderr[-500:]}")
    return Broker(folder, port, version, options)


def existing(folder: Path) -> Broker | None:
    """The broker that was prepared in `folder`, running or not."""
    try:
        version, port = (folder / "broker.version").read_text().split()
    except (OSError, ValueError):
        return None
    return Broker(folder, int(port), version)


def answers(port: int) -> bool:
    """Whether a Kafka broker answers there: to ApiVersions, because a port may be open before it does."""
    request = struct.pack(">hhih", 18, 0, 7, 5) + b"probe"
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5) as probe:
            probe.sendall(struct.pack(">i", len(request)) + request)
            answer = probe.recv(8)
    except OSError:
        return False
    return len(answer) == 8 and struct.unpack(">ii", answer)[1] == 7


def free_port() -> int:
    """A port with a free one behind it, below the ephemeral ones. Raises BrokerUnusable."""
    for port in random.sample(_PORTS, 200):
        if all(_is_free(one) for one in (port, port + 1)):
            return port
    raise BrokerUnusable(f"no two free ports between {_PORTS.start} and {_PORTS.stop}: name one")


def check_port(port: int) -> None:
    """Raises BrokerUnusable where a new broker could not listen there, or its controller not behind it."""
    for one, what in ((port, "the broker"), (port + 1, "the broker's controller, at the next port,")):
        if reason := _refusal(one):
            raise BrokerUnusable(
                f"{what} cannot listen on port {one} ({reason}): name another --port, and a --folder of its own"
            )


def _is_free(port: int) -> bool:
    return not _refusal(port, anew=False)


def _refusal(port: int, *, anew: bool = True) -> str:
    """Why nothing can listen there; "" where it can. `anew`: where connections of an earlier listener linger, as Java does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(anew))
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return ""


def _command(folder: Path, version: str, options: tuple[str, ...]) -> list[str]:
    logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}"
    classpath = os.pathsep.join([*map(str, _logging_jars()), f"{jars(version=version)}/*"])
    return [java() or "java", "-Xmx256m", *options, logging, "-cp", classpath]


def _logging_jars() -> list[Path]:
    """What has Kafka's own log written: it does not come with Kafka's module, and does with PySpark."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        return []
    folder = Path(spark.origin).parent / "jars"
    return [
        jar
        for name in ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
        for jar in folder.glob(f"{name}-[0-9]*.jar")
    ]


def identity() -> str:
    """A cluster id; one that begins with a dash would be read as an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return made


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another process started it
