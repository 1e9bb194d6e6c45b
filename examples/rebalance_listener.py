"""Work on the difference: a rebalance listener that keeps what stays.

With an assignor that is not sticky, a listener cleans everything up when partitions are revoked, because it cannot hope
to get any of them back. With a sticky one most come back at once. So, as KIP-54 shows it: commit when partitions are
revoked, and clean up only when it is known which of them are really gone. What was lost (the group went on without us)
is another case: it may be another member's already, so nothing is committed for it.

    python -m examples.rebalance_listener --bootstrap 127.0.0.1:9092 --group g --topic orders
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiokafka import ConsumerRebalanceListener

from orchestrator.partition_assignors import TopicPartition
from orchestrator.partition_assignors.aiokafka import GroupConsumer, StickyPartitionAssignor


class Work(Protocol):
    """What an application does with its partitions."""

    async def commit(self, partitions: frozenset[TopicPartition]) -> None:
        """Write down how far these are; they are still ours."""

    async def open(self, partition: TopicPartition) -> None:
        """Set up what is needed for a new partition: its state, its position."""

    async def close(self, partition: TopicPartition) -> None:
        """Clean up after a partition that is gone."""


@dataclass
class KeepWhatStays:
    """The three callbacks, with nothing but the difference passed on to the work."""

    work: Work
    held: frozenset[TopicPartition] = field(default=frozenset())

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Still ours, but perhaps not for long: commit, clean nothing up."""
        if going := self.held & frozenset(partitions):
            await self.work.commit(going)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Not ours any more, without having been asked: no commit, only clean up."""
        await self._close(self.held & frozenset(partitions))

    async def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """All that is ours now: clean up what went, set up what came, leave alone what stayed."""
        now = frozenset(partitions)
        await self._close(self.held - now)
        for partition in sorted(now - self.held):
            await self.work.open(partition)
            self.held |= {partition}

    async def _close(self, gone: frozenset[TopicPartition]) -> None:
        """One by one: aiokafka goes on where a callback raises, and what is left is cleaned up, or set up, by the next one."""
        for partition in sorted(gone):
            self.held -= {partition}
            await self.work.close(partition)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """aiokafka's listener in terms of the three. aiokafka has no callback for loss: it calls `revoked` there too, after
    the broker has put us out, and `generation` tells the two apart."""

    def __init__(self, callbacks: KeepWhatStays, generation: Callable[[], int]) -> None:
        self.callbacks = callbacks
        self.generation = generation

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        partitions = [TopicPartition(p.topic, p.partition) for p in revoked]
        if self.generation() < 0:
            await self.callbacks.lost(partitions)
        else:
            await self.callbacks.revoked(partitions)

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        await self.callbacks.assigned(TopicPartition(p.topic, p.partition) for p in assigned)


@dataclass
class Printing:
    """Work that only says what it would do."""

    consumer: GroupConsumer

    async def commit(self, partitions: frozenset[TopicPartition]) -> None:
        print("commit  ", " ".join(map(str, sorted(partitions))))
        await self.consumer.commit()

    async def open(self, partition: TopicPartition) -> None:
        print("open    ", partition)

    async def close(self, partition: TopicPartition) -> None:
        print("clean up", partition)


async def main(bootstrap: str, group: str, topic: str) -> None:
    consumer = GroupConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[StickyPartitionAssignor],
        enable_auto_commit=False,
    )
    consumer.subscribe([topic], listener=Listener(KeepWhatStays(Printing(consumer)), consumer.group_generation))
    await consumer.start()
    try:
        while True:
            await consumer.getmany(timeout_ms=500)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--group", default="rebalance-listener")
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    asyncio.run(main(options.bootstrap, options.group, options.topic))
