"""The coordinator's lease on Kafka: taken so that two never hold it, and everything that is written under it.

One rule: the lease names the transactional id that its holder writes with, made for this holder alone, and a candidate
initialises the old one before it claims: from then on the old coordinator writes nothing. The order of the steps is the
proof; a candidate may be stopped before any of them:
  1 initialise an id of its own  2 initialise the election's id, a mutex  3 read; another lease than seen: stop
  4 initialise the old holder's id, then that of its seed (seeding.py)  5 settled read; another term: stop; owner records are final
  6 claim: write the lease as the election's producer  7 write everything by the own id.
Stopped before 4, nothing has happened; between 4 and 6, no candidate acts until the next timeout; after 6, its id can be fenced,
as it was initialised before it was named.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from state.errors import LeaseGivenUp, LeaseLost, LogBusy, LogUnavailable, LogUnusable, OutcomeUnknown, StateError
from state.log import checks
from state.log.group_store import Lease
from state.log.kafka import facts
from state.log.kafka.building import build
from state.log.kafka.cluster import Cluster
from state.log.kafka.facts import UNDER_LEASE
from state.log.kafka.facts_topic import WRITER_TIMEOUT_S, FactsTopic
from state.log.kafka.left_open import Written
from state.log.kafka.producer import Producer, ProducerFenced
from state.log.protocol import NewRecord

_NAME_WITHIN_S = 1.0
_ENDED_WITHIN_S = 1.0


class Leases:
    """The leases that this process holds or tries to take."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: dict[str, tuple[Lease, Producer]] = {}
        self.before_step: Callable[[int], Awaitable[None]] | None = None
        """A failpoint for tests: awaited before each step of `acquire`, by its number above."""

    async def acquire(self, topic: FactsTopic, holder: str, address: str, seen: Lease | None) -> Lease | None:
        """See `GroupStore.acquire` and the module text."""
        try:
            return await self._acquire(topic, holder, address, seen)
        except ProducerFenced:
            return None  # another candidate was faster

    async def _acquire(self, topic: FactsTopic, holder: str, address: str, seen: Lease | None) -> Lease | None:
        application = topic.application
        own_id = f"{application}.coordinator.{holder}.{uuid.uuid4().hex[:12]}"
        await self._step(1)
        facts_only = Written([topic.partition(UNDER_LEASE)], None)
        mine = self._producer(own_id, facts_only)
        await mine.initialise()
        await self._step(2)
        election = self._producer(f"{application}.election", facts_only)
        await election.initialise()
        await self._step(3)
        await topic.read(UNDER_LEASE)
        if topic.view.lease() != seen:
            return None
        await self._step(4)
        if seen is not None and seen.transactional_id:
            await self._producer(seen.transactional_id, facts_only).initialise()
        await self._end_seed(topic)
        await self._step(5)
        await topic.read_settled(UNDER_LEASE)
        found = topic.view.lease()
        if (found and found.term) != (seen and seen.term):
            return None
        made = Lease(application, found.term + 1 if found else 1, holder, address, 0, own_id)
        over = [facts.seed_record(None)] if topic.open_seed() is not None else []
        await self._step(6)
        try:
            await topic.write(election, UNDER_LEASE, [facts.lease_record(made), *over])
        except OutcomeUnknown:
            await election.initialise()  # settles it, one way or the other
            await topic.read_settled(UNDER_LEASE)
            if topic.view.lease() != made:
                return None
        self._held[application] = (made, mine)
        return made

    async def _end_seed(self, topic: FactsTopic) -> None:
        """What the old holder was seeding is committed or aborted when this returns. It may lie in the facts, too, so it is ended
        before they are read settled; its name lies before it, and was written by the old holder's id, which is ended already."""
        await topic.read(UNDER_LEASE)
        seed = topic.open_seed()
        if seed is not None:
            await self._producer(seed.transactional_id, Written(None, topic.application)).initialise()

    def _producer(self, transactional_id: str, writes: Written) -> Producer:
        return self._cluster.producer(transactional_id, WRITER_TIMEOUT_S, "lease", writes=writes)

    async def _step(self, number: int) -> None:
        if self.before_step is not None:
            await self.before_step(number)

    # ------------------------------------------------------------------ under it

    async def renew(self, topic: FactsTopic, lease: Lease) -> Lease:
        made = lease

        def next_beat() -> list[NewRecord]:
            nonlocal made
            held, _ = self._held[lease.application]
            made = replace(held, beat=held.beat + 1)
            return [facts.lease_record(made)]

        await self.write(topic, lease, next_beat)
        self._held[lease.application] = made, self._producer_of(topic, lease)  # a fence may have given it up meanwhile
        return made

    async def write(
        self,
        topic: FactsTopic | None,
        lease: Lease,
        make: Callable[[], Sequence[NewRecord]],
    ) -> None:
        """Facts under the lease, in one transaction. `make` is called when it is this write's turn. A call that is cancelled, as at the end
        of a coordinator, has its write ended first: one that is left open costs the lease, and holds up who reads the facts next. Raises
        LeaseLost."""
        writing = asyncio.create_task(self._write(topic, lease, make))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing], timeout=_ENDED_WITHIN_S)
            if not writing.cancel() and not writing.cancelled():
                writing.exception()  # looked at: its caller is gone
            raise

    async def _write(self, topic: FactsTopic | None, lease: Lease, make: Callable[[], Sequence[NewRecord]]) -> None:
        producer = self._producer_of(topic, lease)
        assert topic is not None
        async with producer.turn:
            self._producer_of(topic, lease)  # it may have been given up by the write before
            records = make()
            partition = topic.partition(UNDER_LEASE)
            try:
                behind = await producer.transact(await build(self._cluster.topics, {partition: records}))
            except ProducerFenced:
                self._held.pop(lease.application, None)
                raise LeaseLost(checks.lease_lost(lease, await self._newer(topic, lease))) from None
            except (OutcomeUnknown, LogUnusable, LogUnavailable) as error:
                raise self.given_up(lease, error) from error
            if records:
                topic.view.apply_own(UNDER_LEASE, behind[partition], records)

    def given_up(self, lease: Lease, error: StateError) -> LeaseGivenUp:
        """A holder that cannot write steps down by its own clock; the next holder of the lease settles what it left."""
        self._held.pop(lease.application, None)
        return LeaseGivenUp(
            f"{lease.holder} gives up the lease of {lease.application} (term {lease.term}), because the log does not "
            f"answer: {error}"
        )

    def _producer_of(self, topic: FactsTopic | None, lease: Lease) -> Producer:
        held, producer = self._held.get(lease.application, (None, None))
        if producer is None or held is None or (held.term, held.holder) != (lease.term, lease.holder):
            found = topic.view.lease() if topic is not None else None
            if found is not None and found.term == lease.term:
                found = None  # given up here, and not taken yet
            raise LeaseLost(checks.lease_lost(lease, found))
        return producer

    async def _newer(self, topic: FactsTopic, lease: Lease) -> Lease | None:
        """Who holds the lease now, if that can be found out; None where a candidate fenced the holder and stopped."""
        try:
            await topic.read_settled(UNDER_LEASE, _NAME_WITHIN_S)
        except LogBusy:
            return None
        found = topic.view.lease()
        return None if found is None or found.term == lease.term else found

    def check(self, topic: FactsTopic | None, lease: Lease) -> None:
        """Raises LeaseLost where this process does not hold it, as far as it knows."""
        self._producer_of(topic, lease)
