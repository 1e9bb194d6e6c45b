"""What tests on a broker share: a prefix of their own, logs that are closed, children that can be stopped.

ROUNDS says how long the campaigns are: `make test-kafka ROUNDS=100`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from state.errors import Fenced, LeaseLost
from state.log.group_store import Lease, OwnerRecord
from state.log.kafka.building import build
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.kafka.producer import Producer
from state.log.protocol import FOR_EVER, MayWrite, NewRecord, Partition, TaskCommit, TopicSpec, always
from tests import brokers
from tests.contracts.logs import records, until

ROUNDS = int(os.environ.get("ROUNDS", "5"))
APP = "bank"
OUT, CHANGES, IN = Partition("out", 0), Partition("t-changelog", 0), Partition("in", 0)


class Place:
    """A prefix on the broker that all tests share."""

    def __init__(self, prefix: str | None = None, port: int | None = None) -> None:
        self.prefix = prefix or f"k{uuid.uuid4().hex[:10]}-"
        self.port = port or brokers.shared().port
        self._opened: list[KafkaLog] = []

    async def open(self, timeout_s: float = 30) -> KafkaLog:
        """`timeout_s`: of transactions."""
        options = KafkaOptions([("127.0.0.1", self.port)], self.prefix, transaction_timeout_s=timeout_s)
        self._opened.append(await open_kafka(options))
        return self._opened[-1]

    async def topics(self, timeout_s: float = 30) -> KafkaLog:
        log = await self.open(timeout_s)
        for spec in (TopicSpec("out", 1), TopicSpec("t-changelog", 1, "changelog"), TopicSpec("in", 1)):
            await log.create_topic(spec)
        await log.set_retention("out", FOR_EVER)  # the times of these records are long past: a broker would delete them
        return log

    async def close(self) -> None:
        for log in self._opened:
            await log.close()


class Child:
    """A process that runs one of the programs below, line by line on its standard output."""

    def __init__(self, place: Place, program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.place", program, place.prefix, str(place.port)],
            stdout=subprocess.PIPE,
            text=True,
        )

    async def line(self) -> Any:
        assert self._process.stdout is not None
        text = await asyncio.to_thread(self._process.stdout.readline)
        assert text, f"the child ended with {self._process.poll()}"
        return json.loads(text)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def is_stopped(self) -> None:
        """Waits until the kernel has stopped it."""
        state = Path(f"/proc/{self._process.pid}/stat")
        await until("the stop", lambda: asyncio.sleep(0, state.read_text().rpartition(")")[2].split()[0] == "T"))

    async def rest(self) -> list[Any]:
        """Let it go on; what it writes until it ends."""
        self._process.send_signal(signal.SIGCONT)
        text, _ = await asyncio.to_thread(self._process.communicate, None, 60)
        return [json.loads(line) for line in text.splitlines()]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@asynccontextmanager
async def child(place: Place, program: str) -> AsyncIterator[Child]:
    made = Child(place, program)
    try:
        yield made
    finally:
        made.end()


def owner(number: int, lease: Lease, scope: str = "0_0", transactional_id: str = "w") -> OwnerRecord:
    return OwnerRecord(scope, number, "m", transactional_id, lease.term)


def count(number: int, epoch: int = 1) -> TaskCommit:
    """One record to each topic, and the position: they agree at every moment, or a commit was torn."""
    return TaskCommit("0_0", epoch, {OUT: records(str(number)), CHANGES: records(str(number))}, {IN: number})


async def leave_open(
    log: KafkaLog, producer: Producer, written: Mapping[Partition, Sequence[NewRecord]], position: int | None = None
) -> None:
    """Records, and a position, of a transaction that is over for its coordinator; the broker must not check whether a partition was
    added to one."""
    await log.ends(written, settled=True)
    await producer._write(await build(log._cluster.topics, written), transactional=True)
    assert await is_open(log, *written)
    if position is not None:
        await producer._add_positions(APP, {IN: position}, {})


async def is_open(log: KafkaLog, *partitions: Partition) -> bool:
    ends, written = await log.ends(partitions), await log.written(partitions)
    return all(ends[one] < written[one] for one in partitions)


# ------------------------------------------------------------------ programs of children


async def coordinate(log: KafkaLog) -> None:
    """Take the lease and write owner records for ever."""
    lease = await log.acquire(APP, "old", "a:1", await log.lease(APP))
    assert lease is not None
    number = 0
    try:
        while True:
            number += 1
            await log.record_owners(lease, [owner(number, lease)])
            print(json.dumps(number), flush=True)
    except LeaseLost:
        print(json.dumps("lost"), flush=True)


async def commit(log: KafkaLog) -> None:
    """Commit one number after the other for ever."""
    await log.open_writer(APP, "w")
    number = 0
    try:
        while True:
            number += 1
            await log.commit(APP, "w", [count(number)])
            print(json.dumps(number), flush=True)
    except Fenced:
        print(json.dumps("fenced"), flush=True)


def claim(step: int) -> Callable[[KafkaLog], Awaitable[None]]:
    """Take the lease, stopped by the kernel before a step of the protocol, then write owner records: what came of it."""

    async def one(log: KafkaLog) -> None:
        seen = await log.lease(APP)

        async def stopped(number: int) -> None:
            if number == step:
                print(json.dumps("stopped"), flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)

        log.leases.before_step = stopped
        try:
            lease = await log.acquire(APP, "stopped", "a:1", seen)
            if lease is not None:
                await log.record_owners(lease, [owner(99, lease)])
            print(json.dumps("wrote" if lease is not None else "not taken"), flush=True)
        except LeaseLost:
            print(json.dumps("lost"), flush=True)

    return one


def seed(stop_at: int, *, behind: bool) -> Callable[[KafkaLog], Awaitable[None]]:
    """Take the lease and seed, stopped by the kernel before a request of the seed is sent, or when it is answered (0: never): what
    came of it, and how many requests there were."""

    async def one(log: KafkaLog) -> None:
        connections = log._cluster.connections
        send, sent = connections.send, 0

        def stop() -> None:
            if sent == stop_at:
                print(json.dumps("stopped"), flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)

        async def stopping(node: int, request: Any, purpose: str, may_write: MayWrite = always) -> Any:
            nonlocal sent
            if purpose != "seed":
                return await send(node, request, purpose, may_write)
            sent += 1
            if not behind:
                stop()
            answer = await send(node, request, purpose, may_write)
            if behind:
                stop()
            return answer

        connections.send = stopping  # type: ignore[method-assign]
        lease = await log.acquire(APP, "old", "a:1", await log.lease(APP))
        assert lease is not None
        parts = [{OUT: records("old 2")}, {CHANGES: records("old")}]
        try:
            done = await log.seed_positions(lease, {IN: 1}, {OUT: records("old 1")}, parts=lambda: parts)
            print(json.dumps(["seeded" if done else "refused", sent]), flush=True)
        except LeaseLost:
            print(json.dumps(["lost", sent]), flush=True)

    return one


async def main(program: str, prefix: str, port: str) -> None:
    log = await Place(prefix, int(port)).open()
    programs = {"coordinate": coordinate, "commit": commit, **{f"claim-{step}": claim(step) for step in range(1, 7)}}
    if program.startswith("seed-"):
        _, how, number = program.split("-")
        programs[program] = seed(int(number), behind=how == "behind")
    await programs[program](log)
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
