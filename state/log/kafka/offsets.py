"""Offsets on Kafka: ends, starts, trims; what a group has committed.

One rule: a commit is answered before its markers are written, so the end that readers see may lie before it. Who decides
by an end asks for the settled one: the high watermark, once no transaction is open below it. Committed offsets are asked
for by name and stable: with all topics asked at once, a broker hides a first commit that is not settled yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from typing import Any

from aiokafka.protocol.admin import DeleteRecordsRequest_v1
from aiokafka.protocol.offset import OffsetRequest_v3

from state.errors import LogBusy, LogUnavailable, StateError
from state.log import checks
from state.log.kafka import rights
from state.log.kafka.codes import (
    GROUP_SUBSCRIBED,
    NON_EMPTY_GROUP,
    NONE,
    UNKNOWN_GROUP,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC,
    UNSTABLE_OFFSET,
    KafkaRefused,
)
from state.log.kafka.connections import ANSWER_WITHIN_S, GROUP, Connections
from state.log.kafka.requests import (
    OffsetCommitRequest_v7,
    OffsetDeleteRequest_v0,
    OffsetFetchRequest_v7,
    OffsetForLeaderEpochRequest_v3,
)
from state.log.kafka.rights import on
from state.log.kafka.topics import NO_TIME, Topics
from state.log.protocol import MayWrite, Partition, always

_Kept = dict[Partition, tuple[int, int, str]]  # offset, leader epoch and metadata
_LATEST, _EARLIEST = -1, -2
_ALL, _COMMITTED = 0, 1  # isolation levels
_TRIM_TIMEOUT_MS = 10_000
_NO_GENERATION = -1
_KNOWN_WITHIN_S = 1.0
_PAUSE_S, _PAUSE_MAX_S = 0.001, 0.010


class Offsets:
    """See the module text."""

    def __init__(self, connections: Connections, topics: Topics, settle_within_s: float) -> None:
        self._connections = connections
        self._topics = topics
        self._settle_within_s = settle_within_s
        self._wanted: dict[tuple[str, frozenset[Partition], bool], asyncio.Task[_Kept]] = {}  # not asked for yet

    async def ends(self, partitions: Collection[Partition], purpose: str = "quick") -> dict[Partition, int]:
        """The last stable offsets: what a reader of committed data gets to now."""
        return await self._listed(partitions, _LATEST, _COMMITTED, purpose)

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Those without a leader are left out. One whose leader is away is waited for until it has another, or none."""
        deadline = asyncio.get_running_loop().time() + ANSWER_WITHIN_S
        while True:
            lost = set(await self._topics.leaderless(partitions))
            led = [one for one in partitions if one not in lost]
            try:
                return await self._listed(led, _LATEST, _COMMITTED, "quick", _KNOWN_WITHIN_S)
            except LogUnavailable:  # of a leader that is away: it is looked for again
                if asyncio.get_running_loop().time() >= deadline:
                    raise

    async def watermarks(self, partitions: Collection[Partition], purpose: str = "quick") -> dict[Partition, int]:
        """Behind all that is replicated, open transactions included."""
        return await self._listed(partitions, _LATEST, _ALL, purpose)

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._listed(partitions, _EARLIEST, _ALL, "quick")

    async def settled(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The last stable offsets, once each is behind all that was written before this call. Raises LogBusy."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settle_within_s
        # Asked for at once: a last stable offset that has reached the high watermark is settled, whichever was read first.
        written, ends = await asyncio.gather(self.watermarks(partitions), self.ends(partitions))
        pause = _PAUSE_S
        while left := [partition for partition in written if ends[partition] < written[partition]]:
            if loop.time() >= deadline:
                raise LogBusy(checks.held_open(left[0], self._settle_within_s, self._connections.held_back_s()))
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, _PAUSE_MAX_S)
            ends |= await self.ends(left)
        return ends

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        """See `state.log.protocol.Log.epoch_ends`; 0 where the brokers have not come to that epoch: they were restored."""

        async def ask(node: int, listed: list[Partition]) -> dict[Partition, tuple[int, int]]:
            by_topic = self._topics.names.by_topic({partition: epochs[partition] for partition in listed})
            wanted: Any = [(topic, [(number, -1, epoch) for number, epoch in one]) for topic, one in by_topic.items()]
            answer = await self._connections.send(node, OffsetForLeaderEpochRequest_v3(-1, wanted), "quick")
            if any(end < 0 for _, numbers in answer.topics for *_, end in numbers):
                await self._topics.refresh({one.topic for one in listed})
            return {
                (partition := Partition(self._topics.names.outside(topic), number)): (
                    code or self._unknown(partition, epochs[partition], end),
                    max(0, end),
                )
                for topic, numbers in answer.topics
                for code, number, _, end in numbers
            }

        return await self._topics.led("epochs", epochs, ask, rights.DESCRIBE)

    def _unknown(self, partition: Partition, epoch: int, end: int) -> int:
        """The code for an epoch that its leader does not know though the cluster has come to it: ask again."""
        return UNKNOWN_LEADER_EPOCH if end < 0 and epoch <= self._topics.known_epoch(partition) else NONE

    async def _listed(
        self,
        partitions: Collection[Partition],
        at: int,
        isolation: int,
        purpose: str,
        within_s: float = ANSWER_WITHIN_S,
    ) -> dict[Partition, int]:
        async def ask(node: int, listed: list[Partition]) -> dict[Partition, tuple[int, int]]:
            by_topic = self._topics.names.by_topic(dict.fromkeys(listed, at))
            answer = await self._connections.send(
                node, OffsetRequest_v3(-1, isolation, list(by_topic.items())), purpose
            )
            return {
                Partition(self._topics.names.outside(topic), number): (code, offset)
                for topic, numbers in answer.topics
                for number, code, _, offset in numbers
            }

        return await self._topics.led("offsets", partitions, ask, rights.DESCRIBE, within_s)

    async def trim(self, positions: Mapping[Partition, int]) -> None:
        """Delete the records before these positions; one past the end means the end, as the broker refuses those. A partition without
        a leader is left as it is: nothing is to wait for its brokers."""
        ends = await self.known_ends(positions)
        starts = await self.starts(ends)
        until = {one: min(positions[one], end) for one, end in ends.items()}
        until = {one: position for one, position in until.items() if position > starts[one]}

        async def ask(node: int, listed: list[Partition]) -> dict[Partition, tuple[int, int]]:
            by_topic = self._topics.names.by_topic({partition: until[partition] for partition in listed})
            request = DeleteRecordsRequest_v1(list(by_topic.items()), _TRIM_TIMEOUT_MS)
            answer = await self._connections.send(node, request, "quick")
            return {
                Partition(self._topics.names.outside(topic), number): (code, low)
                for topic, numbers in answer.topics
                for number, low, code in numbers
            }

        await self._topics.led("trimming", until, ask, rights.DELETE)

    async def committed(self, group: str, partitions: Collection[Partition], *, settled: bool) -> dict[Partition, int]:
        """What the group has committed of these partitions, settled or as it was before transactions that are open; those
        without an offset are left out."""
        return {one: offset for one, (offset, _, _) in (await self._kept(group, partitions, settled)).items()}

    async def lost(self, group: str, partitions: Collection[Partition], *, settled: bool) -> dict[Partition, int]:
        """Those whose committed offset lies behind what the partition has kept of it, and where that ends. What was
        committed without an epoch (by another tool) is compared with the end alone."""
        kept, ends = await asyncio.gather(self._kept(group, partitions, settled), self.watermarks(partitions))
        known = {one: epoch for one, (_, epoch, _) in kept.items() if epoch >= 0}
        for one, end in (await self.epoch_ends(known)).items():
            ends[one] = min(ends[one], end)
        return {one: ends[one] for one, (offset, _, _) in kept.items() if ends[one] < offset}

    async def set_elsewhere(
        self, group: str, partitions: Collection[Partition], *, settled: bool
    ) -> dict[Partition, int]:
        """Those whose offset has not our mark beside it: a group without members takes offsets of any program."""
        kept = await self._kept(group, partitions, settled)
        return {one: offset for one, (offset, _, text) in kept.items() if not (text == NO_TIME or _is_time(text))}

    async def committed_ms(self, group: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The times that were committed beside them; what another tool wrote there is none."""
        kept = await self._kept(group, partitions)
        return {one: int(text) for one, (_, _, text) in kept.items() if _is_time(text)}

    def _kept(self, group: str, partitions: Collection[Partition], settled: bool = True) -> Awaitable[_Kept]:
        """Offset, leader epoch and metadata of each. Callers of one moment, a task that begins asks for all three, share a
        request: it is sent after each of them has called this, awaited or not."""
        wanted = (group, frozenset(partitions), settled)
        if (asking := self._wanted.get(wanted)) is None:
            asking = self._wanted[wanted] = asyncio.create_task(self._ask_kept(*wanted))
            asking.add_done_callback(_retrieve_error)
        return asyncio.shield(asking)

    async def _ask_kept(self, group: str, partitions: frozenset[Partition], settled: bool) -> _Kept:
        """One that is settled is not asked for again while others are not: of a busy group there may never be a moment in
        which all are."""
        del self._wanted[group, partitions, settled]
        if not partitions:
            return {}
        inside = self._topics.names.inside(group)
        left = set(partitions)
        found: _Kept = {}

        async def ask() -> _Kept:
            by_topic = self._topics.names.by_topic(dict.fromkeys(sorted(left), None))
            listed: Any = [(topic, [number for number, _ in numbers], {}) for topic, numbers in by_topic.items()]
            request = OffsetFetchRequest_v7(inside, listed, settled, {})
            answer = await self._connections.coordinated(GROUP, inside, request, "quick")
            refused = [("", answer.error)] if answer.error not in (NONE, UNKNOWN_TOPIC) else []
            for topic, numbers, _ in answer.topics:
                for number, offset, epoch, text, code, _ in numbers:
                    if code not in (NONE, UNKNOWN_TOPIC):
                        refused.append((topic, code))
                    else:
                        partition = Partition(self._topics.names.outside(topic), number)
                        left.discard(partition)
                        if offset >= 0:
                            found[partition] = offset, epoch, text or ""
            # What cannot be had by asking again comes first.
            for topic, code in sorted(refused, key=lambda one: one[1] == UNSTABLE_OFFSET):
                taken = on(rights.GROUP, rights.DESCRIBE, inside) + on(rights.TOPIC, rights.DESCRIBE, topic)
                error = KafkaRefused(f"positions of {group}", code, None, taken)
                self._connections.forget_if_moved(GROUP, inside, error)
                raise error
            return found

        return await self._connections.retried(f"positions of {group}", ask, within_s=self._settle_within_s)

    async def are_unsettled(self, group: str, partitions: Collection[Partition]) -> bool:
        """Whether a transaction decides about a position of these. Raises KafkaRefused, LogUnavailable."""
        inside = self._topics.names.inside(group)
        by_topic = self._topics.names.by_topic(dict.fromkeys(sorted(partitions)))
        request: Any = [(topic, [number for number, _ in numbers], {}) for topic, numbers in by_topic.items()]

        async def ask() -> bool:
            answer = await self._connections.coordinated(
                GROUP, inside, OffsetFetchRequest_v7(inside, request, True, {}), "quick"
            )
            error = KafkaRefused(f"positions of {group}", answer.error, None, on(rights.GROUP, rights.DESCRIBE, inside))
            self._connections.forget_if_moved(GROUP, inside, error)
            if answer.error not in (NONE, UNKNOWN_TOPIC, UNSTABLE_OFFSET):
                raise error
            codes = [answer.error, *(code for _, numbers, _ in answer.topics for *_, code, _ in numbers)]
            return UNSTABLE_OFFSET in codes

        return await self._connections.retried(f"positions of {group}", ask) if partitions else False

    async def forget(self, group: str, partitions: Collection[Partition]) -> None:
        """Remove what the group has committed of these partitions; a group that never committed has none."""
        if partitions:
            await self._forget(group, partitions)

    async def check_may_forget(self, group: str) -> None:
        """Raises what `forget` would raise for the right on the group: a request that names no partition removes nothing."""
        await self._forget(group, ())

    async def _forget(self, group: str, partitions: Collection[Partition]) -> None:
        inside = self._topics.names.inside(group)
        by_topic = self._topics.names.by_topic(dict.fromkeys(partitions, None))
        listed: Any = [(topic, [number for number, _ in numbers]) for topic, numbers in by_topic.items()]
        request = OffsetDeleteRequest_v0(inside, listed)
        what = f"removing positions of {group}"

        async def ask() -> None:
            answer = await self._connections.coordinated(GROUP, inside, request, "quick")
            codes = [(topic, code) for topic, numbers in answer.topics for _, code in numbers]
            for topic, code in [("", answer.error), *codes]:
                if code in (NON_EMPTY_GROUP, GROUP_SUBSCRIBED):
                    raise StateError(f"group {inside} has members that read its topics: stop them, and try again")
                if code not in (NONE, UNKNOWN_GROUP, UNKNOWN_TOPIC):
                    taken = on(rights.GROUP, rights.DELETE, inside) + on(rights.TOPIC, rights.READ, topic)
                    refused = KafkaRefused(what, code, None, taken)
                    self._connections.forget_if_moved(GROUP, inside, refused)
                    raise refused

        await self._connections.retried(what, ask)

    async def commit(
        self,
        group: str,
        positions: Mapping[Partition, int],
        times_ms: Mapping[Partition, int],
        may_write: MayWrite = always,
    ) -> None:
        """Put positions into the group, which has no members, outside of a transaction; `times_ms` beside them. Raises
        TooLate."""
        inside = self._topics.names.inside(group)
        placed = self._topics.placed(positions, times_ms)
        listed: Any = [
            (topic, [(number, *what) for number, what in numbers])
            for topic, numbers in self._topics.names.by_topic(placed).items()
        ]
        request = OffsetCommitRequest_v7(inside, _NO_GENERATION, "", None, listed)
        what = f"committing positions of {group}"

        async def ask() -> None:
            answer = await self._connections.coordinated(GROUP, inside, request, "txn", may_write)
            codes = [(topic, code) for topic, numbers in answer.topics for _, code in numbers if code != NONE]
            for topic, code in codes:
                taken = on(rights.GROUP, rights.READ, inside) + on(rights.TOPIC, rights.READ, topic)
                refused = KafkaRefused(what, code, None, taken)
                self._connections.forget_if_moved(GROUP, inside, refused)
                raise refused

        await self._connections.retried(what, ask)


def _retrieve_error(asking: asyncio.Task[_Kept]) -> None:
    """Retrieves the error of a question that no call awaits any more: asyncio would report it as never retrieved."""
    if not asking.cancelled():
        asking.exception()


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdecimal()
