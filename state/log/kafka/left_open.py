"""What a transaction that is over for its coordinator left open in a partition, and how that is ended.

One rule: it is ended as its coordinator says that it ended, by its own id; where the coordinator does not say how, it stays.
Kafka (4.3.0) leaves it so: a coordinator takes a partition without a leader for a deleted one, and counts the transaction as
complete. It has none while its only broker is away, or where the coordinator starts again and does not know it yet. What was
committed there would be hidden for ever, and aborted with the next transaction that is. A partition takes any later end by the
same producer for the end of what it has open.
Place: `producer.py` asks before it initialises an id, and before it begins a transaction: where it was connected anew behind the
commit before, and always of a partition of one broker among several that it writes to again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from state.errors import LogUnavailable, StateError
from state.log.kafka import rights
from state.log.kafka.codes import CONCURRENT_TRANSACTIONS, NO_SUCH_ID, NONE, TOPIC_DENIED, KafkaRefused
from state.log.kafka.connections import TRANSACTION, Connections
from state.log.kafka.offsets import Offsets
from state.log.kafka.requests import DescribeProducersRequest_v0, DescribeTransactionsRequest_v0
from state.log.kafka.rights import on
from state.log.kafka.topics import Topics
from state.log.protocol import Partition

# What a coordinator calls the state of an id's latest transaction, and whether that is committed. "Ongoing" is decided by the
# initialising itself, which asks again then; _INITIALISED says nothing: the id was initialised behind the end.
_COMMITTED: Mapping[str, bool] = {
    "PrepareCommit": True,
    "CompleteCommit": True,
    "PrepareAbort": False,
    "PrepareEpochFence": False,
    "CompleteAbort": False,
}
_INITIALISED = "Empty"
_LOOK_S = 1.0  # how long an id that was initialised waits for the look; then it goes on beside what follows
_MARKED_S = 0.25  # in which the markers of a commit come, where nothing is wrong
_PAUSE_S, _PAUSE_MAX_S = 0.001, 0.020


class Written(NamedTuple):
    """Where a transaction may have written: records (None: wherever this process knows a partition), and positions of a group."""

    partitions: Collection[Partition] | None
    group: str | None


ANYWHERE = Written(None, None)


def with_place(error: LogUnavailable, before: Collection[str]) -> LogUnavailable:
    """Where a transaction cannot begin, as the markers of the one before are not written: with the topics that one was in, as no answer
    says which brokers are at fault."""
    cause = error.__cause__
    if not before or not isinstance(cause, KafkaRefused) or cause.code != CONCURRENT_TRANSACTIONS:
        return error
    return LogUnavailable(f"{error}; it wrote to {', '.join(before)}")


class EndAgain(Protocol):
    """A transaction of no records by the same producer, in these partitions and the group."""

    async def __call__(
        self, partitions: Collection[Partition], group: str | None, *, committed: bool
    ) -> None: ...  # pragma: no cover


class LeftOpen:
    """What lies behind one producer: transactions by its id before it was initialised, and its own latest one. See the module text."""

    def __init__(
        self,
        connections: Connections,
        topics: Topics,
        offsets: Offsets,
        writes: Written,
        purpose: str,
        end_again: EndAgain,
    ) -> None:
        self._connections = connections
        self._topics = topics
        self._offsets = offsets
        self._writes = writes
        self._purpose = purpose
        self._end_again = end_again
        self._producer_id = -1
        self._ending: asyncio.Task[None] | None = None  # what was left open before it was initialised
        self._looking: asyncio.Task[None] | None = None
        self._latest: Written | None = None
        # Of partitions that are one broker's: the offsets behind the latest commit there, whose markers have not been seen.
        self._unmarked: dict[Partition, int] = {}
        self._unsettled: Written | None = None  # the positions beside them
        self.is_in_doubt = False
        """A broker was connected to anew behind the latest transaction: it may have left that one open."""

    # ------------------------------------------------------------------ before it was initialised

    async def was_committed(self, inside: str, known: bool | None = None) -> bool | None:
        """How the latest transaction of this id (by the cluster's name) ended; None: it has not, there was none, or nothing tells.
        `known`: what was found before an initialising that may have taken place, behind which the coordinator says nothing.
        One try: raises KafkaRefused, Unreachable."""
        request = DescribeTransactionsRequest_v0([inside], {})
        answer = await self._connections.coordinated(TRANSACTION, inside, request, self._purpose)
        code, _, state, *_ = answer.states[0]
        if code == NO_SUCH_ID:
            return None
        if code != NONE:
            refused = KafkaRefused(
                f"how {inside} ended", code, None, on(rights.TRANSACTIONAL_ID, rights.DESCRIBE, inside)
            )
            self._connections.forget_if_moved(TRANSACTION, inside, refused)
            raise refused
        return known if state == _INITIALISED else _COMMITTED.get(state)

    async def initialised(self, producer_id: int, was_committed: bool | None) -> None:
        """The id is this producer's now: what it had open is ended. Partitions without a leader are waited for beside what follows."""
        self._producer_id, self._latest, self.is_in_doubt = producer_id, None, False
        if was_committed is not None:
            self._ending = asyncio.create_task(self._end_before(was_committed))
            await asyncio.wait({self._ending}, timeout=_LOOK_S)

    async def _end_before(self, was_committed: bool) -> None:
        # An error here is no other than the one that whatever waits for such a partition meets; or the id is another process's by now.
        with contextlib.suppress(StateError):
            if not was_committed:
                await self._settle()
            kept = () if was_committed else list(self._unmarked)  # of commits before that one
            await self._end(self._writes, committed=was_committed, but=kept)

    # ------------------------------------------------------------------ its own

    def begun(self) -> None:
        """What it has open from now on is a transaction that is not committed; it may be interrupted, and must not be ended as one that
        was. The one before is over: another was opened behind it."""
        self._latest = None

    def committed(self, written: Written, behind: Mapping[Partition, int]) -> None:
        """Its latest transaction: the commit was answered. `behind`: the offsets behind its records."""
        self._latest = written
        alone = {one: behind[one] for one in self._topics.alone(behind)}
        self._unmarked |= alone
        if alone and written.group is not None:
            self._unsettled = written

    def doubt(self, turn: asyncio.Lock) -> None:
        """A broker was connected to anew. It is looked soon, in a turn of the producer's own: no transaction may follow."""
        if self._latest is not None or self._unmarked:
            self.is_in_doubt = self._latest is not None
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(turn))

    async def _look(self, turn: asyncio.Lock) -> None:
        async with turn:
            with contextlib.suppress(StateError):  # it stays in doubt: the next transaction looks, and says so
                await self._resolve()
                away = await self._topics.leaderless(self._unmarked)
                await self._mark([one for one in self._unmarked if one not in away])

    async def ready(self, partitions: Collection[Partition] | None, group: str | None) -> None:
        """Nothing is left open that a transaction of these (None: of any) would end, as far as is known. Raises KafkaRefused,
        LogUnavailable, OutcomeUnknown."""
        await self.ended()
        await self._resolve()
        await self._mark([one for one in self._unmarked if partitions is None or one in partitions])
        if group is not None:
            await self._settle()

    async def ended(self) -> None:
        """What was begun when it was initialised is over. To initialise it again before would take the end back, and an end that
        comes after would be that of another transaction."""
        if self._ending is not None:
            await asyncio.wait({self._ending})

    async def _mark(self, among: Collection[Partition]) -> None:
        """The commits before have their markers in these; for a moment those are waited for. An end of them may be left out as they were."""
        while unmarked := await self._unmarked_in(among):
            if not await self._end(Written(unmarked, None), committed=True):
                break  # what is open there is others'
        for one in among:
            self._unmarked.pop(one, None)

    async def _settle(self) -> None:
        """The same of the group's positions."""
        before, loop = self._unsettled, asyncio.get_running_loop()
        if before is None or before.group is None:
            return
        deadline = loop.time() + _MARKED_S
        while await self._offsets.are_unsettled(before.group, before.partitions or ()):
            if loop.time() >= deadline:
                await self._end_again((), before.group, committed=True)
                break
            await asyncio.sleep(_PAUSE_MAX_S)
        self._unsettled = None

    async def _unmarked_in(self, among: Collection[Partition]) -> list[Partition]:
        loop = asyncio.get_running_loop()
        deadline, pause, left = loop.time() + _MARKED_S, _PAUSE_S, list(among)
        while left:
            ends = await self._offsets.ends(left, self._purpose)
            left = [one for one in left if ends[one] < self._unmarked[one]]
            if loop.time() >= deadline:
                break
            if left:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_S)
        return left

    async def _resolve(self) -> None:
        if not self.is_in_doubt or self._latest is None:
            return
        self.is_in_doubt = False
        try:
            await self._end(self._latest, committed=True)
        except BaseException:
            self.is_in_doubt = True
            raise

    # ------------------------------------------------------------------ both

    async def _end(self, written: Written, *, committed: bool, but: Collection[Partition] = ()) -> bool:
        """Whether anything was left open there, but for these."""
        partitions = await self._topics.known() if written.partitions is None else written.partitions
        left, group = await self._left_in([one for one in partitions if one not in but]), written.group
        if group is not None and not await self._offsets.are_unsettled(group, partitions):
            group = None
        if not left and group is None:
            return False
        await self._end_again(left, group, committed=committed)
        return True

    async def _left_in(self, among: Collection[Partition]) -> list[Partition]:
        """Those in which this producer has a transaction open; also those that are open where it may not be seen whose. Raises
        KafkaRefused, LogUnavailable."""
        watermarks = await self._offsets.watermarks(among, self._purpose)
        ends = await self._offsets.ends(among, self._purpose)
        doubtful = [one for one in among if ends[one] < watermarks[one]]
        if not doubtful:
            return []

        async def ask(node: int, listed: list[Partition]) -> dict[Partition, tuple[int, bool]]:
            by_topic = self._topics.names.by_topic(dict.fromkeys(listed))
            wanted: Any = [(topic, [number for number, _ in numbers], {}) for topic, numbers in by_topic.items()]
            answer = await self._connections.send(node, DescribeProducersRequest_v0(wanted, {}), self._purpose)
            return {
                Partition(self._topics.names.outside(topic), number): _is_open(code, producers, self._producer_id)
                for topic, numbers, _ in answer.topics
                for number, code, _, producers, _ in numbers
            }

        found = await self._topics.led("producers", doubtful, ask, rights.READ)
        return [one for one in doubtful if found[one]]


def _is_open(code: int, producers: Any, producer_id: int) -> tuple[int, bool]:
    if code == TOPIC_DENIED:  # an output, which is only written: an end more does nothing where nothing is open
        return NONE, True
    return code, any(one == producer_id and start >= 0 for one, _, _, _, _, start, _ in producers)
