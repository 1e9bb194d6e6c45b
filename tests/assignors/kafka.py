"""A real Kafka broker and a Java member for tests: jars through Ivy (it is in PySpark), Java from the path.

The jars are kept in the user's cache folder, so that only the first run fetches them.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

KAFKA = "4.3.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-orchestrator"
TOPICS = {"orders": 7, "payments": 5}
HERE = Path(__file__).resolve().parent

SETTINGS = """\
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
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=16777216
controlled.shutdown.enable=false
"""
LOGGING = """\
<Configuration><Appenders><Console name="out"><PatternLayout pattern="%p %c %m%n"/></Console></Appenders>
<Loggers><Root level="error"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def tool(name: str) -> str | None:
    """A Java tool: from JAVA_HOME, from the path."""
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / name if home else None
    return str(beside) if beside and beside.exists() else shutil.which(name)


def jars(module: str = "kafka_2.13") -> Path:
    """The folder with Kafka's jars, or with those of another module of it; fetched once."""
    folder = CACHE / f"{module.partition('_')[0]}-{KAFKA}"
    if not (folder / "complete").exists():
        import pyspark

        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
        command = [tool("java") or "java", "-jar", str(ivy), "-dependency", "org.apache.kafka", module, KAFKA]
        command += ["-confs", "default", "-cache", str(CACHE / "ivy"), "-types", "jar", "bundle"]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise RuntimeError(f"Ivy could not fetch {module} {KAFKA}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        (folder / "complete").touch()
    return folder


def classpath(*more: Path) -> str:
    return os.pathsep.join([f"{jars()}/*", *map(str, more)])


def compiled(source: Path, target: Path, *more: Path) -> Path:
    """Compile one Java file against Kafka's jars (and more); the folder of its classes."""
    target.mkdir(parents=True, exist_ok=True)
    command = [tool("javac") or "javac", "-cp", classpath(*more), "-d", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"javac {source.name}: {done.stdout}{done.stderr}")
    return target


def skip_without_java() -> None:
    missing = [name for name in ("java", "javac") if tool(name) is None]
    if missing:
        pytest.skip(f"needs a Java development kit: {', '.join(missing)} not found in JAVA_HOME or on the path")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """One Kafka broker; its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port, controller = _free_port(), _free_port()
    settings, logging = folder / "server.properties", folder / "log4j2.xml"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder / "log"))
    logging.write_text(LOGGING)
    java = [tool("java") or "java", "-Xmx256m", f"-Dlog4j2.configurationFile={logging}", "-cp", classpath()]
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    while identity.startswith("-"):  # would be read as an option
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with (folder / "broker.out").open("w") as out:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(timeout=30)


async def create_topics(address: str) -> None:
    """Make the topics, as soon as the broker answers."""

    async def ready() -> bool:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        try:
            await admin.start()
            await admin.create_topics([NewTopic(topic, count, 1) for topic, count in TOPICS.items()])
            return True
        except KafkaError:
            return False
        finally:
            await admin.close()

    await until(ready, "the broker to answer", 60)


async def until(condition: Callable[[], Any], what: str, seconds: float = 25) -> None:
    """Wait for a condition; what it was for is in the failure."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert loop.time() < end, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.05)


@dataclass
class JavaMember:
    """A Java consumer in its own process; `assigned` is what it said last."""

    process: asyncio.subprocess.Process
    assigned: set[tuple[str, int]] | None = None
    lines: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @staticmethod
    async def start(classes: Path, address: str, group: str, topics: list[str], strategy: str) -> JavaMember:
        process = await asyncio.create_subprocess_exec(
            *(tool("java") or "java", "-Xmx128m", "-cp", classpath(classes), "Member"),
            *(address, group, ",".join(topics), strategy),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        member = JavaMember(process)
        member.task = asyncio.create_task(member._listen())
        return member

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode().strip()
            self.lines.append(line)
            word, _, rest = line.partition(" ")
            if word == "assigned":
                self.assigned = {(t, int(p)) for t, _, p in (name.rpartition("-") for name in rest.split(",") if name)}
            elif word == "revoked":
                self.assigned = None

    async def kill(self) -> None:
        """Gone without a word; the group notices when the session has timed out."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Leave the group and end; killed when it does not."""
        assert self.process.stdin is not None
        if self.process.returncode is None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 20)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        if self.task:
            await self.task
