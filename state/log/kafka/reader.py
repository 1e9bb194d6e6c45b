"""The incremental reader on Kafka: one long poll for each broker that leads partitions of it, whatever else goes on.

One rule: an answer counts only where its partition still stands at the position that was asked for; a partition that was
added again, or dropped, meanwhile has another number of adding, and old answers are dropped. What is added is asked for
at once over a connection of its own, because the long poll under way does not know of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from state.errors import LogUnavailable, StateError
from state.log import checks
from state.log.kafka import rights
from state.log.kafka.client_settings import FETCH_BYTES
from state.log.kafka.codes import NONE, KafkaRefused, Then, Unreachable
from state.log.kafka.connections import Connections
from state.log.kafka.fetch import FetchAnswer, FetchRequest, Given, Run, committed, cut, first_bytes
from state.log.kafka.offsets import Offsets
from state.log.kafka.read_epochs import ReadEpochs
from state.log.kafka.rights import on
from state.log.kafka.topics import Topics
from state.log.protocol import Fetched, Partition

LONG_POLL_MS = 100  # also how long what came just after it was asked may wait for the next one
BUFFER_BYTES = 1 << 20
LOOK_S = 1.0  # how long a poll that may not wait waits for what is known to be there
_PAUSE_S = 0.050
_numbers = itertools.count(1)


@dataclass(slots=True)
class _Place:
    """A partition that is read: `fetched` is where the next request begins, `position` what callers were given."""

    position: int
    fetched: int
    epoch: int = -1  # of the leader that wrote the last of what was given to callers
    fetched_epoch: int = -1
    runs: deque[Run] = field(default_factory=deque)
    buffered: int = 0
    asking: bool = False
    seeking: bool = False  # its leader is looked for
    asked: bool = False  # at least once
    readable: int = 0  # the last stable offset, as last known
    needs: int = 0  # bytes: the next batch is larger than what is asked for as a rule
    failed: StateError | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there is more to get than was given: a poll that may not wait waits for this."""
        return self.failed is None and (not self.asked or self.position < self.readable)


class KafkaReader:
    """See the module text and `state.log.protocol.Reader`."""

    def __init__(
        self,
        connections: Connections,
        topics: Topics,
        offsets: Offsets,
        max_bytes: int = FETCH_BYTES,
        max_partition_bytes: int | None = None,
    ) -> None:
        """`max_bytes` of one answer, and of one partition in it, where that is less than a poll asks for."""
        self._connections = connections
        self._topics = topics
        self._offsets = offsets
        self._name = f"fetch-{next(_numbers)}"
        self._places: dict[Partition, _Place] = {}
        self._bytes = BUFFER_BYTES
        self._max_bytes, self._max_partition_bytes = max_bytes, max_partition_bytes
        self._loops: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._added: set[Partition] = set()
        self._left: dict[Partition, tuple[int, int]] = {}  # where what was dropped stood, and in which epoch
        self._changed = asyncio.Event()  # batches can be handed out
        self._wanted = asyncio.Event()  # a fetch may be sent
        self._away: LogUnavailable | None = None  # was reported, and no broker has answered since
        self._broken: BaseException | None = None

    def add(self, partition: Partition, position: int) -> None:
        self.drop(partition)
        at, epoch = self._left.pop(partition, (-1, -1))
        known = epoch if at == position else -1  # held back meanwhile
        self._places[partition] = _Place(position, position, known, known)
        if not self._added:
            self._begin(self._ask_for_added())
        self._added.add(partition)

    def drop(self, partition: Partition) -> None:
        place = self._places.pop(partition, None)
        if place is not None:
            self._left[partition] = (place.position, place.epoch)

    async def close(self) -> None:
        self._places.clear()
        running = [*self._loops.values(), *self._tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for purpose in (self._name, f"{self._name}-quick"):
            self._connections.close_purpose(purpose)

    # ------------------------------------------------------------------ handing out

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        patience = max(deadline, loop.time() + LOOK_S)
        self._bytes = max_bytes_per_partition
        await asyncio.sleep(0)  # a poll that always has data must not starve the loop
        while True:
            self._changed.clear()
            if self._broken is not None:
                raise self._broken
            if given := self._taken(max_bytes_per_partition):
                self._wanted.set()
                return given
            until = patience if any(place.is_behind for place in self._places.values()) else deadline
            if loop.time() >= until:
                if self._away is not None and self._places:  # an empty answer would say that brokers are back
                    raise self._away
                return []
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _taken(self, max_bytes: int) -> list[Fetched]:
        """What is buffered, at most about `max_bytes` of each partition. Raises what failed."""
        given: list[Fetched] = []
        for partition, place in self._places.items():
            if place.failed is not None and not place.runs:
                if given:  # first what is there; the next poll says what failed
                    break
                raise self._reported(place.failed)
            if place.runs:
                given.append(_hand_out(partition, place, max_bytes, self._topics.read_epochs))
        return given

    def _reported(self, failed: StateError) -> StateError:
        """Brokers that are away are looked for again once that was reported; all else stays until the next `add`."""
        if isinstance(failed, LogUnavailable):
            self._away = failed
            away = [one for one, place in self._places.items() if isinstance(place.failed, LogUnavailable)]
            for partition in away:
                self._places[partition].failed = None
                self._places[partition].asked = False
            self._begin(self._again(away))
        return failed

    # ------------------------------------------------------------------ asking

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self._changed.set()

    async def _ask_for_added(self) -> None:
        """What was added in this round of the loop, each from its leader, without a wait."""
        added, self._added = self._added, set()
        for node, listed in (await self._leaders(added)).items():
            for partition in listed:
                if (place := self._places.get(partition)) is not None:
                    place.seeking = False
            self._begin(self._ask(node, listed, 0, f"{self._name}-quick"))
            self._follow_too(node)

    def _follow_too(self, node: int) -> None:
        if node not in self._loops or self._loops[node].done():
            self._loops[node] = task = asyncio.create_task(self._follow(node))
            task.add_done_callback(self._ended)

    async def _leaders(self, partitions: set[Partition]) -> dict[int, list[Partition]]:
        """The partitions by leader; those that are not there fail by themselves."""
        found: dict[int, list[Partition]] = {}
        for partition in partitions:
            try:
                for node, listed in (await self._topics.by_leader([partition])).items():
                    found.setdefault(node, []).extend(listed)
            except KafkaRefused:  # without a leader at the moment
                self._begin(self._again([partition]))  # which is looked for already
            except StateError as error:
                self._fail(partition, error)
        return found

    def _seek(self, partitions: Sequence[Partition]) -> None:
        """Look for the leaders of these, and do not ask for them meanwhile. Of each one search at a time: while a broker
        is away each of its answers would begin another one, and they would go on beside each other."""
        lost = [one for one in partitions if (place := self._places.get(one)) is not None and not place.seeking]
        for partition in lost:
            self._places[partition].seeking = True
        if lost:
            self._begin(self._again(lost))

    async def _again(self, partitions: Sequence[Partition]) -> None:
        """Look for the leaders of these once more, in a moment."""
        await asyncio.sleep(_PAUSE_S)
        self._topics.forget({partition.topic for partition in partitions})
        self._added |= {partition for partition in partitions if partition in self._places}
        await self._ask_for_added()

    async def _follow(self, node: int) -> None:
        """Long polls of one broker, as long as it leads anything that is read."""
        while True:
            self._wanted.clear()
            self._pass_on()
            mine = [one for one in self._places if self._topics.known_leader(one) == node]
            if not mine:
                return
            ready = [one for one in mine if self._may_ask(self._places[one])]
            if ready:
                await self._ask(node, ready, LONG_POLL_MS, self._name)
            else:
                await self._wanted.wait()

    def _pass_on(self) -> None:
        """What another broker leads by now is followed there. Who else uses the layouts may have learned of it first, and
        the one that led before answers on as a replica: then no answer says that it has moved."""
        lost: list[Partition] = []
        for partition, place in self._places.items():
            leader = self._topics.known_leader(partition)
            if leader is None or place.seeking or place.failed is not None:
                continue
            if leader < 0:
                lost.append(partition)
            else:
                self._follow_too(leader)
        self._seek(lost)

    def _may_ask(self, place: _Place) -> bool:
        return not place.asking and not place.seeking and place.failed is None and place.buffered < self._bytes

    async def _ask(self, node: int, listed: Sequence[Partition], wait_ms: int, purpose: str) -> None:
        asked = {one: place for one in listed if (place := self._places.get(one)) is not None and self._may_ask(place)}
        if not asked:
            return
        for place in asked.values():
            place.asking = True
        most = min(self._bytes, self._max_partition_bytes or self._bytes)
        by_topic = self._topics.names.by_topic(
            {one: (place.fetched, max(most, place.needs)) for one, place in asked.items()}
        )
        request = FetchRequest(by_topic, wait_ms, self._max_bytes)
        try:
            answer: FetchAnswer = await self._connections.send(node, request, purpose)
        except Unreachable:
            self._seek(list(asked))
            return
        except StateError as error:
            for partition in asked:
                self._fail(partition, error)
            return
        finally:
            for place in asked.values():
                place.asking = False
            self._wanted.set()
        self._away = None
        for given in answer.given:
            partition = Partition(self._topics.names.outside(given.topic), given.number)
            if partition in asked and self._places.get(partition) is asked[partition]:
                self._take(partition, asked[partition], given)
        self._changed.set()

    # ------------------------------------------------------------------ answers

    def _take(self, partition: Partition, place: _Place, given: Given) -> None:
        place.asked = True
        if given.code != NONE:
            self._refused(
                partition,
                place,
                KafkaRefused(f"reading {partition}", given.code, None, on(rights.TOPIC, rights.READ, given.topic)),
            )
            return
        place.readable = given.stable_end
        runs = committed(given, place.fetched)
        place.needs = 0 if runs else first_bytes(given.data)
        if runs and 0 <= place.fetched_epoch < runs[-1].epoch:
            place.asking = True  # not asked for meanwhile
            self._begin(self._elected(partition, place, runs))
        else:
            _keep(place, runs)

    async def _elected(self, partition: Partition, place: _Place, runs: Sequence[Run]) -> None:
        """Another leader has written these: what was read before must be in its log, too (KIP-320)."""
        try:
            end = (await self._offsets.epoch_ends({partition: place.fetched_epoch}))[partition]
            start = (await self._offsets.starts([partition]))[partition] if end < place.fetched else 0
        except StateError as error:
            self._fail(partition, error)
            return
        finally:
            place.asking = False
            self._wanted.set()
        if self._places.get(partition) is not place:
            return
        if end < place.fetched:
            self._fail(partition, checks.lost(partition, place.fetched, start, end))
        else:
            _keep(place, runs)
            self._changed.set()

    def _refused(self, partition: Partition, place: _Place, refused: KafkaRefused) -> None:
        if refused.then is Then.POSITION:
            self._begin(self._out_of_range(partition, place))
        elif refused.then in (Then.LEADER, Then.AGAIN):
            place.asked = False
            self._seek([partition])
        else:
            self._fail(partition, refused)

    async def _out_of_range(self, partition: Partition, place: _Place) -> None:
        """Name start and end; by the time they are known the position may be right (a leader that lagged)."""
        place.asking = True  # not asked for meanwhile
        try:
            starts, ends = await self._offsets.starts([partition]), await self._offsets.watermarks([partition])
        except StateError as error:
            self._fail(partition, error)
            return
        finally:
            place.asking = False
        if self._places.get(partition) is not place:
            return
        start, end = starts[partition], ends[partition]
        if start <= place.fetched <= end:
            place.asked = False
            self._seek([partition])
        else:
            self._fail(partition, checks.out_of_range(partition, place.fetched, start, end))

    def _fail(self, partition: Partition, error: StateError) -> None:
        if (place := self._places.get(partition)) is not None:
            place.failed, place.seeking = error, False
        self._changed.set()


def _keep(place: _Place, runs: Sequence[Run]) -> None:
    for run in runs:
        place.runs.append(run)
        place.buffered += len(run.data)
        place.fetched, place.fetched_epoch = run.next, run.epoch


def _hand_out(partition: Partition, place: _Place, max_bytes: int, epochs: ReadEpochs) -> Fetched:
    """Whole batches up to about `max_bytes`, at least one."""
    pieces: list[bytes] = []
    size, position = 0, place.position
    while place.runs and (size < max_bytes or not place.runs[0].data):
        run, rest = cut(place.runs.popleft(), max_bytes - size)
        if rest is not None:
            place.runs.appendleft(rest)
        pieces.append(run.data)
        size += len(run.data)
        epochs.given(partition, place.position, run.next, run.epoch)
        place.position, place.epoch = run.next, run.epoch
    place.buffered -= size
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Fetched(partition, position, data, place.position, place.epoch)
