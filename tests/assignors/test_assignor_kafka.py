"""On a real broker: Java and Python members in one group, whoever leads; and a rolling bounce from range to sticky."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRebalanceListener

from orchestrator.partition_assignors.aiokafka import GroupConsumer, RangePartitionAssignor, StickyPartitionAssignor
from tests.assignors import kafka
from tests.assignors.kafka import TOPICS, until

pytestmark = pytest.mark.kafka
JAVA_STICKY = "org.apache.kafka.clients.consumer.StickyAssignor"
EVERYTHING = {(topic, p) for topic, count in TOPICS.items() for p in range(count)}
Held = set[tuple[str, int]]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kafka.skip_without_java()
    return kafka.compiled(kafka.HERE / "java" / "Member.java", tmp_path_factory.mktemp("classes"))


class PythonMember(ConsumerRebalanceListener):  # type: ignore[misc]
    """One of ours: reads and commits, and never has two of these at once with a rebalance in between."""

    def __init__(self, address: str, group: str, strategies: list[Any], seen: list[tuple[str, int, int]]) -> None:
        self.assigned: Held | None = None
        self.seen = seen
        self.turn = asyncio.Lock()
        self.consumer = GroupConsumer(
            bootstrap_servers=address,
            group_id=group,
            partition_assignment_strategy=strategies,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            retry_backoff_ms=20,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self.task: asyncio.Task[None] | None = None

    async def on_partitions_revoked(self, revoked: Any) -> None:
        async with self.turn:  # what was read is committed before anything is given up
            self.assigned = None

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned = {(partition.topic, partition.partition) for partition in assigned}

    async def start(self) -> PythonMember:
        self.consumer.subscribe(list(TOPICS), listener=self)
        await self.consumer.start()
        self.task = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        while True:
            async with self.turn:
                # During a rebalance getmany waits for its end, and its end waits for our turn.
                if not self.consumer._subscription.reassignment_in_progress:
                    batches = await self.consumer.getmany(timeout_ms=0)
                    for partition, records in batches.items():
                        self.seen += [(partition.topic, partition.partition, record.offset) for record in records]
                    if batches:
                        await self.consumer.commit()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self.task:
            async with self.turn:
                self.task.cancel()
            self.task = None
            await self.consumer.stop()

    @property
    def generation(self) -> int:
        return int(self.consumer.group_generation())


def settled(*members: Any) -> Callable[[], bool]:
    """All partitions are assigned, each once, over exactly these members, as evenly as can be."""

    def check() -> bool:
        held = [member.assigned for member in members]
        if any(found is None for found in held):
            return False
        sizes = [len(found) for found in held]
        apart = all(a.isdisjoint(b) for a, b in combinations(held, 2))
        return apart and set().union(*held) == EVERYTHING and max(sizes) - min(sizes) <= 1

    return check


def held(*members: Any) -> list[Held]:
    return [set(member.assigned) for member in members]


@pytest.mark.parametrize("leader", ["java", "python"])
async def test_a_mixed_group_keeps_all_that_can_be_kept(leader: str, address: str, classes: Path) -> None:
    group = f"mixed-{leader}"
    async with AsyncExitStack() as stack:

        async def java() -> Any:
            member = await kafka.JavaMember.start(classes, address, group, list(TOPICS), JAVA_STICKY)
            stack.push_async_callback(member.stop)
            await until(lambda: member.assigned is not None, "the Java member to be assigned something")
            return member

        async def python() -> PythonMember:
            member = PythonMember(address, group, [StickyPartitionAssignor], [])
            stack.push_async_callback(member.stop)
            return await member.start()

        makers = [java, python] if leader == "java" else [python, java]
        first, second = [await make() for make in makers]  # the first one in leads
        await until(settled(first, second), "two members to share everything")
        before = held(first, second)
        third = await python()
        await until(settled(first, second, third), "three members to share everything")
        after = held(first, second, third)
        kept = [len(was & now) for was, now in zip(before, after, strict=False)]
        print(f"{leader} leads; join: kept {kept} of {[len(was) for was in before]}, 4 each is all that can be kept")
        assert kept == [4, 4]
        await third.stop()
        await until(settled(first, second), "two members to share everything again")
        left = held(first, second)
        kept = [len(was & now) for was, now in zip(after, left, strict=False)]
        print(f"{leader} leads; leave: kept {kept} of {[len(was) for was in after[:2]]}")
        assert kept == [4, 4]
        # The leader goes, Java by kill -9: who leads next has only what the members carry, and keeps it all.
        third = await python()
        await until(settled(first, second, third), "three members once more")
        before = held(second, third)
        await (first.kill() if leader == "java" else first.stop())
        await until(settled(second, third), "the others to share everything")
        after = held(second, third)
        print(f"{leader} gone: kept {[len(a & b) for a, b in zip(before, after, strict=True)]} of [4, 4]")
        assert all(was <= now for was, now in zip(before, after, strict=True))


async def test_a_rolling_bounce_from_range_to_sticky_loses_and_doubles_nothing(address: str) -> None:
    seen: list[tuple[str, int, int]] = []
    sent = 0
    stages: list[list[Any]] = [
        [RangePartitionAssignor],
        [RangePartitionAssignor, StickyPartitionAssignor],
        [StickyPartitionAssignor],
    ]
    async with AsyncExitStack() as stack:
        producer = AIOKafkaProducer(bootstrap_servers=address)
        await producer.start()
        stack.push_async_callback(producer.stop)

        async def send() -> None:
            nonlocal sent
            for topic, partition in sorted(EVERYTHING):
                await producer.send_and_wait(topic, b"x", partition=partition)
                sent += 1

        async def member(strategies: list[Any]) -> PythonMember:
            one = PythonMember(address, "bounce", strategies, seen)
            stack.push_async_callback(one.stop)
            return await one.start()

        members = [await member(stages[0]) for _ in range(2)]
        await until(shared(members), "the first members to share everything")
        for strategies in stages[1:]:
            for number in range(len(members)):
                await send()
                await members[number].stop()
                await send()
                members[number] = await member(strategies)
                await until(shared(members), "everybody to be back")
        await send()
        await until(lambda: len(seen) >= sent, "all records to be read")
        before = held(*members)
        third = await member(stages[2])
        await until(shared([*members, third]), "a third member to take its share")
        assert [len(was & now) for was, now in zip(before, held(*members), strict=True)] == [4, 4], "sticky by now"
    assert len(seen) == len(set(seen)) == sent


def shared(members: list[PythonMember]) -> Callable[[], bool]:
    """Everything is assigned, each partition once; range is not even over two topics."""

    def check() -> bool:
        found = [member.assigned for member in members]
        parts = [held for held in found if held]
        return len(parts) == len(found) and sum(map(len, parts)) == len(EVERYTHING) == len(set().union(*parts))

    return check
