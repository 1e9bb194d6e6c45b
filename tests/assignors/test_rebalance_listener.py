"""The example listener: only the difference is worked on, and loss is not a revocation."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from aiokafka import TopicPartition as Foreign

from examples.rebalance_listener import KeepWhatStays, Listener, Printing, Work
from orchestrator.partition_assignors import ASSIGNORS, Subscription, TopicPartition
from orchestrator.partition_assignors.aiokafka import GroupConsumer, StickyPartitionAssignor
from tests.assignors.kafka import until


@dataclass
class Noted(Work):
    """Notes what it is told."""

    done: list[str] = field(default_factory=list)

    async def commit(self, partitions: frozenset[TopicPartition]) -> None:
        self.done.append("commit " + " ".join(map(str, sorted(partitions))))

    async def open(self, partition: TopicPartition) -> None:
        self.done.append(f"open {partition}")

    async def close(self, partition: TopicPartition) -> None:
        self.done.append(f"close {partition}")


async def test_only_the_difference_is_worked_on() -> None:
    """Example 2 of seed 004: C0 goes, C1 keeps both of its partitions and gets a third: nothing is cleaned up."""
    topics = {"t0": 1, "t1": 2, "t2": 3}
    reads = {"C0": ("t0",), "C1": ("t0", "t1"), "C2": ("t0", "t1", "t2")}
    sticky = ASSIGNORS["sticky"]
    before = sticky.assign(topics, {m: Subscription(t) for m, t in reads.items()})
    after = sticky.assign(topics, {m: Subscription(t, tuple(before[m])) for m, t in reads.items() if m != "C0"})
    work = Noted()
    callbacks = KeepWhatStays(work)
    await callbacks.assigned(before["C1"])
    assert work.done == ["open t1-0", "open t1-1"]
    work.done.clear()
    await callbacks.revoked(before["C1"])
    await callbacks.assigned(after["C1"])
    assert work.done == ["commit t1-0 t1-1", "open t0-0"]


async def test_what_is_gone_is_cleaned_up_after_the_rebalance() -> None:
    work = Noted()
    callbacks = KeepWhatStays(work)
    await callbacks.assigned([TopicPartition("t", 0), TopicPartition("t", 1)])
    await callbacks.revoked(callbacks.held)
    await callbacks.assigned([TopicPartition("t", 1), TopicPartition("t", 2)])
    assert work.done[2:] == ["commit t-0 t-1", "close t-0", "open t-2"]


@dataclass
class Failing(Noted):
    """Fails once for each of these."""

    fails: set[str] = field(default_factory=set)

    async def open(self, partition: TopicPartition) -> None:
        self._fail(f"open {partition}")
        await super().open(partition)

    async def close(self, partition: TopicPartition) -> None:
        self._fail(f"close {partition}")
        await super().close(partition)

    def _fail(self, what: str) -> None:
        if what in self.fails:
            self.fails.remove(what)
            raise OSError(what)


async def test_work_that_fails_does_not_leave_the_rest_undone_for_ever() -> None:
    """aiokafka writes down what a listener raises, and goes on: partitions behind the one that failed were taken for set up, or for
    cleaned up, by every rebalance that followed."""
    partitions = [TopicPartition("t", number) for number in range(4)]
    work = Failing(fails={"open t-1", "close t-0"})
    callbacks = KeepWhatStays(work)
    with pytest.raises(OSError, match="open t-1"):
        await callbacks.assigned(partitions[:3])
    await callbacks.assigned(partitions[:3])
    assert work.done == ["open t-0", "open t-1", "open t-2"]
    work.done.clear()
    with pytest.raises(OSError, match="close t-0"):
        await callbacks.lost(partitions[:3])
    await callbacks.assigned(partitions[3:])
    assert work.done == ["close t-1", "close t-2", "open t-3"]


@pytest.mark.parametrize(("generation", "expected"), [(3, ["commit t-0"]), (-1, ["close t-0"])])
async def test_what_is_lost_is_not_committed(generation: int, expected: list[str]) -> None:
    work = Noted()
    listener = Listener(KeepWhatStays(work), lambda: generation)
    await listener.on_partitions_assigned([Foreign("t", 0)])
    work.done.clear()
    await listener.on_partitions_revoked([Foreign("t", 0)])
    assert work.done == expected


@pytest.mark.kafka
async def test_on_a_broker_the_partitions_that_stay_are_left_alone(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def member() -> tuple[GroupConsumer, KeepWhatStays]:
        consumer = GroupConsumer(
            bootstrap_servers=address,
            group_id="listener",
            partition_assignment_strategy=[StickyPartitionAssignor],
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=6000,
        )
        callbacks = KeepWhatStays(Printing(consumer))
        consumer.subscribe(["orders"], listener=Listener(callbacks, consumer.group_generation))
        await consumer.start()
        return consumer, callbacks

    first, held = await member()
    await until(lambda: len(held.held) == 7, "all partitions of one topic")
    assert capsys.readouterr().out.count("open") == 7
    second, other = await member()
    await until(lambda: (len(held.held), len(other.held)) == (4, 3), "two members to share")
    shown = capsys.readouterr().out
    await second.stop()
    await first.stop()
    assert shown.count("clean up") == 3, "four stay and are left alone"
    assert shown.count("open") == 3
