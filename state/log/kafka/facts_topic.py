"""The facts topic of one application: its tail, reads that a decision may rest on, and compare-and-set.

One rule: a decision rests on a settled read: up to the high watermark as it was when the read began, once nothing is open
below it. A read up to the last stable offset may miss what another process was answered, and once hid a rival's claim.
The mutex is a transactional id: to initialise it aborts or outwaits the process that had it before, so of two that read, compare
and write, one is refused its write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from state.errors import LogBusy, LogUnavailable, LogUnusable, StateError
from state.log import checks
from state.log.batches import decode
from state.log.kafka import facts
from state.log.kafka.building import build
from state.log.kafka.cluster import Cluster
from state.log.kafka.codes import is_denied
from state.log.kafka.facts import EVERYBODYS, PARTITIONS, View
from state.log.kafka.left_open import Written
from state.log.kafka.producer import Producer, ProducerFenced
from state.log.protocol import FOR_EVER, NewRecord, Partition, TopicSpec

WRITER_TIMEOUT_S = 10.0  # of transactions that hold facts: longer than a broker's hiccup, short as others wait for them
_TAIL_WAIT_MS = 1_000
_AWAY_S = 0.1  # behind all the time that a poll itself waits for brokers
_SETTINGS = {"segment.ms": "600000"}


class FactsTopic:
    """See the module text. Made by `opened`; `close` ends its tail."""

    def __init__(self, cluster: Cluster, application: str) -> None:
        self._cluster = cluster
        self.application = application
        self.topic = facts.topic_of(application)
        self.view = View(application)
        self.topic_id = b""
        self._positions = dict.fromkeys(range(PARTITIONS), 0)
        self._reader = cluster.reader()
        self._moved = asyncio.Condition()
        self._failed: StateError | None = None  # for good: the topic has to be opened anew
        self._away: LogUnavailable | None = None  # until brokers answer again
        self._tail: asyncio.Task[None] | None = None
        writes = Written([self.partition(EVERYBODYS)], None)
        self._mutex = cluster.producer(f"{application}.notes", WRITER_TIMEOUT_S, "facts", writes=writes)

    @staticmethod
    async def opened(cluster: Cluster, application: str, *, create: bool) -> FactsTopic | None:
        """Read up to its present end; None where there is none, and `create` is not set."""
        name = facts.topic_of(application)
        if create:
            await cluster.topics.create(TopicSpec(name, PARTITIONS, "changelog"), _SETTINGS)
        elif name not in await cluster.topics.refresh([name]):
            return None
        made = FactsTopic(cluster, application)
        try:
            await made._start()
        except BaseException:
            await made.close()
            raise
        made.topic_id = cluster.topics.known_id(name)
        return made

    @staticmethod
    async def seen_once(cluster: Cluster, application: str, number: int, patience_s: float) -> View | None:
        """As `look` sees it. Read by a topic of its own, closed again, which no other call of this process uses meanwhile."""
        made = await FactsTopic.opened(cluster, application, create=False)
        if made is None:
            return None
        try:
            await made.look(number, patience_s)
            return made.view
        finally:
            await made.close()

    async def require_kept(self) -> None:
        """Raises LogUnusable where brokers would delete facts: the topic was made before, or its settings were changed."""
        found = (await self._cluster.topics.infos([self.topic])).get(self.topic)
        if found is not None and (found.kind != "changelog" or found.retention != FOR_EVER):
            raise LogUnusable(
                f"topic {self.topic} holds which instance owns which task, and its records are deleted with time or size: two instances "
                "could take themselves for the owner of one task; set its cleanup.policy to compact alone"
            )

    async def _start(self) -> None:
        partitions = [self.partition(number) for number in range(PARTITIONS)]
        starts = await self._cluster.offsets.starts(partitions)
        for partition in partitions:
            self._positions[partition.number] = starts[partition]
            self._reader.add(partition, starts[partition])
        self._tail = asyncio.create_task(self._follow())
        for partition in partitions:
            await self.read(partition.number)

    def partition(self, number: int) -> Partition:
        return Partition(self.topic, number)

    def open_seed(self) -> facts.Seed | None:
        """The seed that may be open, as far as the facts were read."""
        seed = self.view.seed()
        return None if seed is None or seed.committed else seed

    async def close(self) -> None:
        if self._tail is not None:
            self._tail.cancel()
            await asyncio.gather(self._tail, return_exceptions=True)
        await self._reader.close()

    # ------------------------------------------------------------------ reading

    async def _follow(self) -> None:
        """Apply whatever is written, until closed; what fails is raised by the next read. Brokers that are away are waited for."""
        while self._failed is None:
            try:
                await self._apply_next()
                self._away = None
            except LogUnavailable as error:
                self._away = error
                await asyncio.sleep(_AWAY_S)
            except StateError as error:
                self._failed = error
            async with self._moved:
                self._moved.notify_all()

    async def _apply_next(self) -> None:
        for fetched in await self._reader.poll(wait_ms=_TAIL_WAIT_MS):
            number = fetched.partition.number
            for record in decode(fetched.data, fetched.position):
                self.view.apply(number, record.offset, record.key, record.value)
            self._positions[number] = fetched.next_position

    @property
    def has_failed(self) -> bool:
        return self._failed is not None

    def check(self) -> None:
        """Raises where the tail ended, or gets no answer: what this process believes gets older and older. A right that is missing is
        no outage: it is not waited for."""
        error = self._failed or self._away
        if error is not None:
            raise (LogUnusable if is_denied(error) else LogUnavailable)(
                f"the facts of {self.application} cannot be followed: {error}"
            ) from error

    async def read(self, number: int) -> None:
        """Up to what readers of committed data get now."""
        partition = self.partition(number)
        await self._reach(number, (await self._cluster.offsets.ends([partition], "facts"))[partition])

    async def read_settled(self, number: int, within_s: float | None = None) -> None:
        """Up to all that was written before this call. Raises LogBusy where a transaction stays open."""
        partition = self.partition(number)
        end = (await self._cluster.offsets.watermarks([partition], "facts"))[partition]
        await self._reach(number, end, within_s)

    async def read_until(self, number: int, is_there: Callable[[], bool], within_s: float) -> None:
        """As `read_settled`, or until `is_there`, whichever comes first: what lies behind that is open may stay so for long.
        Raises LogBusy."""
        partition = self.partition(number)
        end = (await self._cluster.offsets.watermarks([partition], "facts"))[partition]
        await self._reach(number, end, within_s, is_there)

    async def look(self, number: int, patience_s: float) -> None:
        """As `read_settled`, for who only looks: after `patience_s` what can be read now is enough."""
        try:
            await self.read_settled(number, patience_s)
        except LogBusy:
            await self.read(number)

    async def _reach(
        self, number: int, end: int, within_s: float | None = None, is_there: Callable[[], bool] = lambda: False
    ) -> None:
        within_s = self._cluster.settle_within_s if within_s is None else within_s
        try:
            async with asyncio.timeout(within_s), self._moved:
                while self._positions[number] < end and self._failed is None and not is_there():
                    await self._moved.wait()
        except TimeoutError:
            self.check()
            raise LogBusy(
                checks.held_open(self.partition(number), within_s, self._cluster.connections.held_back_s())
            ) from None
        if self._failed is not None:
            self.check()

    # ------------------------------------------------------------------ writing

    async def change(self, decide: Callable[[View], Sequence[NewRecord] | None]) -> bool:
        """Write what `decide` makes of the facts as they are; None: nothing. No other process's change comes between."""
        async with self._mutex.turn:
            tries = 0
            while True:
                try:
                    return await self._try(decide)
                except ProducerFenced:  # another process was in it at the same time: one of us goes first
                    tries += 1
                    await asyncio.sleep(random.random() * 0.01 * 2 ** min(tries, 5))

    async def _try(self, decide: Callable[[View], Sequence[NewRecord] | None]) -> bool:
        await self._mutex.initialise()
        await self.read_settled(EVERYBODYS)
        records = decide(self.view)
        if records is None:
            return False
        await self.write(self._mutex, EVERYBODYS, records)
        return True

    async def write(self, producer: Producer, number: int, records: Sequence[NewRecord]) -> None:
        """One transaction of records in one partition; they are in the view when it returns. Raises ProducerFenced."""
        partition = self.partition(number)
        behind = await producer.transact(await build(self._cluster.topics, {partition: records}))
        self.view.apply_own(number, behind[partition], records)
