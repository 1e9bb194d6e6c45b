"""What a transaction that is over for its coordinator left open in a partition, and how that is ended.

One rule: it is ended as its coordinator says that it ended, by its own id; where the coordinator does not say how, it stays.
Kafka (4.3.0) leaves it so: a coordinator takes a partition without a leader for a deleted one, and counts the transaction as
complete. It has none while its only broker is away, or where the coordinator starts again and does not know it yet. What was
committed there would be hidden for ever, and aborted with the next transaction that is. A partition takes any later end by the
same producer for the end of what it has open.
Place: `producer.py` asks before it initialises an id, and before it begins a transaction: where it was connected anew behind the
commit before, and always of a partition of one broker among several that it writes to again. What cannot be ended as its broker is away
is ended before the partition is written to again, and tried again until then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from state.errors import LogUnavailable, StateError
from state.log.kafka import rights
from state.log.kafka.codes import CONCURRENT_TRANSACTIONS, NO_SUCH_ID, NONE, TOPIC_DENIED, KafkaRefused, Then
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
_INITIALISED, OPEN = "Empty", "Ongoing"
_BEING_ENDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_Left = TypeVar("_Left")
_LOOK_S = 1.0  # how long an id that was initialised waits for the look; then it goes on beside what follows
_MARKED_S = 0.25  # in which the markers of a commit come, where nothing is wrong
_PAUSE_S, _PAUSE_MAX_S = 0.001, 0.020
_AGAIN_S, _AGAIN_MAX_S = 1.0, 15.0  # between tries of what is away


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


class _Positions(NamedTuple):
    """Those of a group that a transaction may have left undecided, and how it ended."""

    group: str
    partitions: Collection[Partition]
    committed: bool


class EndAgain(Protocol):
    """A transaction of no records by the same producer, in these partitions and the group."""

    async def __call__(
        self, partitions: Collection[Partition], group: str | None, *, committed: bool
    ) -> None: ...  # pragma: no cover


async def latest_of(connections: Connections, inside: str, purpose: str) -> tuple[str, int]:
    """The state of an id's latest transaction, as its coordinator calls it, and when that began (ms); "" for an id that it does not know.
    One try: raises KafkaRefused, Unreachable."""
    request = DescribeTransactionsRequest_v0([inside], {})
    answer = await connections.coordinated(TRANSACTION, inside, request, purpose)
    code, _, state, _, start_ms, *_ = answer.states[0]
    if code not in (NONE, NO_SUCH_ID):
        refused = KafkaRefused(f"how {inside} ended", code, None, on(rights.TRANSACTIONAL_ID, rights.DESCRIBE, inside))
        connections.forget_if_moved(TRANSACTION, inside, refused)
        raise refused
    return (str(state), int(start_ms)) if code == NONE else ("", -1)


class LeftOpen:
    """What lies behind one producer: transactions by its id before it was initialised, and its own latest one. See the module text.
    `inside`: its id by the cluster's name; `answer_s`: how long a request of one is tried again."""

    def __init__(
        self,
        connections: Connections,
        topics: Topics,
        offsets: Offsets,
        inside: str,
        writes: Written,
        purpose: str,
        answer_s: float,
        end_again: EndAgain,
        turn: asyncio.Lock,
    ) -> None:
        self._connections = connections
        self._topics = topics
        self._offsets = offsets
        self._inside = inside
        self._writes = writes
        self._purpose = purpose
        self._answer_s = answer_s
        self._end_again = end_again
        self._turn = turn
        self._producer_id = -1
        self._ending: asyncio.Task[None] | None = None  # what was left open before it was initialised
        self._looking: asyncio.Task[None] | None = None
        self._latest: Written | None = None
        # Of partitions that are one broker's: the offsets behind the latest commit there, whose markers have not been seen.
        self._unmarked: dict[Partition, int] = {}
        # Where something may be open that ended before the id was initialised, and whether that was committed.
        self._before: dict[Partition, bool] = {}
        self._positions: _Positions | None = None  # beside either
        self._trying: asyncio.Task[None] | None = None  # to end what was away
        self._has_open = False  # a transaction of its own, which an end here would end, too: interrupted perhaps
        self.is_in_doubt = False
        """A broker was connected to anew behind the latest transaction: it may have left that one open."""

    # ------------------------------------------------------------------ before it was initialised

    async def was_committed(self, known: bool | None = None) -> bool | None:
        """How the latest transaction of this id ended; None: it has not, there was none, or nothing tells. `known`: what was found before
        an initialising that may have taken place, behind which the coordinator says nothing. One try: raises KafkaRefused, Unreachable."""
        state = await self._state()
        return known if state == _INITIALISED else _COMMITTED.get(state)

    async def _state(self) -> str:
        """Of the id's latest transaction, as its coordinator calls it; "" for an id that it does not know."""
        return (await latest_of(self._connections, self._inside, self._purpose))[0]

    async def initialised(self, producer_id: int, was_committed: bool | None) -> None:
        """The id is this producer's now: what it had open is ended. What is away is tried again beside what follows."""
        self._producer_id, self._latest, self.is_in_doubt, self._has_open = producer_id, None, False, False
        if was_committed is not None:
            self._ending = asyncio.create_task(self._end_before(was_committed))
            await asyncio.wait({self._ending}, timeout=_LOOK_S)

    async def _end_before(self, was_committed: bool) -> None:
        partitions, group = self._writes.partitions, self._writes.group
        if partitions is None:
            try:
                partitions = await self._topics.known()
            except StateError:
                partitions = self._topics.remembered()
        for one in partitions:
            if one not in self._unmarked:
                self._before.setdefault(one, was_committed)  # what is open there is of the earlier one, if two left it
        if group is not None and self._positions is None:
            self._positions = _Positions(group, partitions, was_committed)
        with contextlib.suppress(StateError):
            await self._end_what_is_led()
        if (self._before or self._positions is not None) and (self._trying is None or self._trying.done()):
            self._trying = asyncio.create_task(self._try(self._positions))

    async def _try(self, positions: _Positions | None) -> None:
        """Also where nobody has this producer any more: who fenced another's id may be the only one that knows how that ended."""
        pause = _AGAIN_S
        while (self._before or self._positions is positions is not None) and not self._connections.closed:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_MAX_S)
            async with self._turn:
                try:
                    await self.ended()
                    await self._end_what_is_led()
                except KafkaRefused as error:
                    if error.then is Then.FENCED:
                        return  # the id is another's by now
                except StateError:
                    continue  # it is met, and said, by whatever waits for these partitions

    async def _end_what_is_led(self) -> None:
        if self._has_open:
            return
        left = {*self._before, *self._unmarked}
        if left:
            for gone in left - set(await self._topics.known()):
                self._before.pop(gone, None)
                self._unmarked.pop(gone, None)
            away = set(await self._topics.leaderless({*self._before, *self._unmarked}))
            await self._mark([one for one in self._unmarked if one not in away])
            await self._end_in([one for one in self._before if one not in away])
        await self._settle()

    async def _end_in(self, among: Collection[Partition]) -> None:
        for committed in (True, False):
            chosen = [one for one in among if self._before.get(one) is committed]
            if chosen:
                await self._end(Written(chosen, None), committed=committed)
        for one in among:
            self._before.pop(one, None)

    # ------------------------------------------------------------------ its own

    def begun(self) -> None:
        """What it has open from now on is a transaction that is not committed; it may be interrupted, and must not be ended as one that
        was. The one before is over: another was opened behind it."""
        self._latest, self._has_open = None, True

    def committed(self, written: Written, behind: Mapping[Partition, int]) -> None:
        """Its latest transaction: the commit was answered. `behind`: the offsets behind its records."""
        self._latest, self._has_open = written, False
        alone = {one: behind[one] for one in self._topics.alone(behind)}
        self._unmarked |= alone
        if alone and written.group is not None:
            self._positions = _Positions(written.group, written.partitions or (), True)

    def doubt(self) -> None:
        """A broker was connected to anew. It is looked soon, in a turn of the producer's own: no transaction may follow."""
        if self._latest is not None or self._before or self._unmarked or self._positions is not None:
            self.is_in_doubt = self._latest is not None
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        async with self._turn:
            with contextlib.suppress(StateError):  # it stays in doubt: the next transaction looks, and says so
                await self.ended()
                await self._resolve()
                await self._end_what_is_led()

    async def ready(self, partitions: Collection[Partition] | None, group: str | None) -> None:
        """Nothing is left open that a transaction of these (None: of any) would end, as far as is known. Raises KafkaRefused,
        LogUnavailable, OutcomeUnknown."""
        await self.ended()
        await self._resolve()
        await self._mark([one for one in self._unmarked if partitions is None or one in partitions])
        await self._end_in([one for one in self._before if partitions is None or one in partitions])
        if group is not None:
            await self._settle()

    async def ended(self) -> None:
        """What was begun when it was initialised is over. To initialise it again before would take the end back, and an end that
        comes after would be that of another transaction."""
        if self._ending is not None:
            await asyncio.wait({self._ending})

    async def _mark(self, among: Collection[Partition]) -> None:
        """The commits before have their markers in these. They are waited for as long as their coordinator writes them; what lacks one
        behind that is ended here, and this end may be left out as the one before was."""
        while among and (unmarked := await self._once_decided(lambda: self._unmarked_in(among))):
            if not await self._end(Written(unmarked, None), committed=True):
                break  # what is open there is others'
        for one in among:
            self._unmarked.pop(one, None)

    async def _unmarked_in(self, among: Collection[Partition]) -> list[Partition]:
        ends = await self._offsets.ends(among, self._purpose)
        return [one for one in among if ends[one] < self._unmarked[one]]

    async def _settle(self) -> None:
        """The same of the group's positions."""
        before = self._positions
        if before is None:
            return
        group, partitions, committed = before
        if await self._once_decided(lambda: self._offsets.are_unsettled(group, partitions)):
            await self._end_again((), group, committed=committed)
        self._positions = None

    async def _once_decided(self, look: Callable[[], Awaitable[_Left]]) -> _Left:
        """What `look` finds once the coordinator writes no more markers: none, or what it has left out. Raises LogUnavailable."""

        async def ask() -> _Left:
            deadline, pause = asyncio.get_running_loop().time() + _MARKED_S, _PAUSE_S
            while left := await look():
                if asyncio.get_running_loop().time() >= deadline:
                    if await self._state() in _BEING_ENDED:
                        raise KafkaRefused(f"the markers of {self._inside}", CONCURRENT_TRANSACTIONS)
                    break
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_S)
            return left

        return await self._connections.retried(f"the markers of {self._inside}", ask, within_s=self._answer_s)

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

    async def _end(self, written: Written, *, committed: bool) -> bool:
        """Whether anything was left open there."""
        partitions = await self._topics.known() if written.partitions is None else written.partitions
        left, group = await self._left_in(partitions), written.group
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
