"""A real Kafka broker with topics, and a Java member, for tests of assignors."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from state.log.kafka.broker import VERSION as VERSION
from state.log.kafka.broker import jars as jars
from state.log.kafka.broker import java as java
from state.log.kafka.broker import prepare
from tests import brokers

TOPICS = {"orders": 7, "payments": 5}
HERE = Path(__file__).resolve().parent


def classpath(*more: Path) -> str:
    return os.pathsep.join([f"{jars()}/*", *map(str, more)])


def compiled(source: Path, target: Path, *more: Path) -> Path:
    """Compile one Java file against Kafka's jars (and more); the folder of its classes."""
    target.mkdir(parents=True, exist_ok=True)
    command = [java("javac") or "javac", "-cp", classpath(*more), "-d", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"javac {source.name}: {done.stdout}{done.stderr}")
    return target


def skip_without_java() -> None:
    missing = [name for name in ("java", "javac") if java(name) is None]
    if missing:
        pytest.skip(f"needs a Java development kit: {', '.join(missing)} not found in JAVA_HOME or on the path")


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """One Kafka broker; its address."""
    made = prepare(folder, version=brokers.VERSION)
    try:
        made.launch()
        yield made.address
    finally:
        made.stop(kill=True)


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
            *(java() or "java", "-Xmx128m", "-cp", classpath(classes), "Member"),
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
