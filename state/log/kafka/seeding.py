"""A seed on Kafka: starting positions, and the records of a history before them, in one transaction that may take many minutes.

One rule: a seed is written by an id of its own, made for it alone and named under the lease before anything is written by it.
Whoever takes the lease ends what that id has open before the claim (lease.py), so a seed is committed under the lease or not at all;
the lease's own id renews meanwhile, and its transactions stay short. The last record of the transaction says that it is committed:
so an end that is not answered, or that another has fenced, is looked up. What readers of every process need, the facts, is written
last and lies open for a moment only.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from state.errors import LogUnavailable, LogUnusable, OutcomeUnknown, StateError
from state.log.group_store import Lease
from state.log.kafka import broker_settings, facts
from state.log.kafka.building import build, build_parts
from state.log.kafka.cluster import Cluster, KafkaOptions
from state.log.kafka.codes import INVALID_TRANSACTION_TIMEOUT, KafkaRefused
from state.log.kafka.facts import UNDER_LEASE, Seed
from state.log.kafka.facts_topic import FactsTopic
from state.log.kafka.lease import Leases
from state.log.kafka.left_open import Written
from state.log.kafka.producer import Producer, ProducerFenced
from state.log.kafka.spreading import Ticket
from state.log.kafka.unbuilt import Built
from state.log.protocol import NewRecord, Partition, Parts, Spread

ANSWER_WITHIN_S = 60.0  # a broker with default settings is noticed as dead after 9 s, and its partitions are led anew
_ABANDON_S = 5.0


class SeedTooLong(LogUnusable):
    """The brokers aborted the transaction of a seed for its age; nothing was written."""


class Contents(NamedTuple):
    """What one seed writes: records, those of `parts` behind them (where they are `spread`, by other processes), facts and
    positions."""

    records: Mapping[Partition, Sequence[NewRecord]]
    parts: Parts
    facts: Sequence[NewRecord]
    positions: Mapping[Partition, int]
    spread: Spread | None


class _Begun(Exception):
    """The application has positions by now."""


class Seeds:
    """See the module text. `most_s`: a shorter limit than the brokers', for tests."""

    def __init__(self, cluster: Cluster, leases: Leases, options: KafkaOptions) -> None:
        self._cluster = cluster
        self._leases = leases
        self._options = options
        self.most_s = math.inf

    async def seed(self, topic: FactsTopic | None, lease: Lease, contents: Contents) -> bool:
        """See `Log.seed_positions`. Raises SeedTooLong, and OutcomeUnknown where the brokers do not say whether it took place."""
        built = await build(self._cluster.topics, contents.records)
        self._leases.check(topic, lease)
        assert topic is not None
        if await self._has_positions(lease, contents):
            return False
        limit_s = await self._limit_s()
        producer, seed = await self._named(topic, lease, limit_s)
        since = _now()
        committed = facts.seed_record(Seed(seed.transactional_id, committed=True))
        noted = [*contents.facts, committed]
        partition = topic.partition(UNDER_LEASE)

        async def everything() -> AsyncIterator[Built]:
            if built:
                yield built
            if contents.spread is not None:
                yield {one: [] for one in contents.spread.partitions}  # the transaction has them when this goes on
                await self._spread(contents.spread, producer, seed, since + limit_s)
            else:
                async for part in build_parts(self._cluster.topics, contents.parts):
                    yield part
            if await self._has_positions(lease, contents):
                raise _Begun
            yield await build(self._cluster.topics, {partition: noted})

        try:
            behind = await producer.transact({}, lease.application, contents.positions, parts=everything())
        except _Begun:
            return False
        except ProducerFenced:
            return await self._after_fence(topic, lease, seed, _now() - since, limit_s)
        except OutcomeUnknown as error:
            return await self._after_timeout(topic, producer, seed, error)
        except asyncio.CancelledError:
            await _abandon(producer)
            raise
        topic.view.apply_own(UNDER_LEASE, behind[partition], noted)
        return True

    async def check_may_seed(self, application: str) -> None:
        """Raises LogUnusable where brokers refuse a transaction that may take as long as a seed; by an id that nothing is written with."""
        limit_s = await self._limit_s()
        await _initialised(self._producer(application, _new_seed(application), limit_s), limit_s)

    async def _limit_s(self) -> float:
        return min(self.most_s, await broker_settings.transaction_limit_s(self._cluster.connections))

    async def _has_positions(self, lease: Lease, contents: Contents) -> bool:
        return bool(await self._cluster.offsets.committed(lease.application, contents.positions, settled=True))

    async def _named(self, topic: FactsTopic, lease: Lease, limit_s: float) -> tuple[Producer, Seed]:
        """The producer of a new seed. Raises LeaseLost."""
        seed = _new_seed(lease.application)
        left = topic.open_seed()  # by this holder, whose call was not answered: its transaction may be open
        if left is not None:
            await self._producer(lease.application, left, limit_s).initialise()
        producer = self._producer(lease.application, seed, limit_s)
        await _initialised(producer, limit_s)
        await self._leases.write(topic, lease, lambda: [facts.seed_record(seed)])
        return producer, seed

    def _producer(self, application: str, seed: Seed, limit_s: float) -> Producer:
        writes = Written(None, application)
        return self._cluster.producer(
            seed.transactional_id, limit_s, "seed", answer_within_s=ANSWER_WITHIN_S, writes=writes
        )

    async def _spread(self, spread: Spread, producer: Producer, seed: Seed, until: float) -> None:
        """Other processes write. Where that fails the transaction is ended by a new epoch, so that those of them which go on are
        refused, whatever brokers check. Behind `until` they have failed because brokers have ended it: raises ProducerFenced."""
        ticket = Ticket(self._options, seed.transactional_id, producer.identity, ANSWER_WITHIN_S)
        try:
            await spread.write(ticket)
        except Exception as error:
            await producer.initialise()
            if _now() >= until:
                raise ProducerFenced(f"{seed.transactional_id} is over: {error}") from error
            raise

    # ------------------------------------------------------------------ endings

    async def _after_fence(self, topic: FactsTopic, lease: Lease, seed: Seed, took_s: float, limit_s: float) -> bool:
        """Another holder of the lease has ended it, or brokers have. Raises LeaseLost, SeedTooLong."""
        if await _is_committed(topic, seed):
            return True
        await self._leases.renew(topic, lease)
        raise SeedTooLong(
            f"the brokers aborted what was to be written to the log after {took_s:.0f} s, because it is one transaction and "
            f"they allow {limit_s:g} s for one; nothing was written: raise transaction.max.timeout.ms of the brokers, and "
            "run it again"
        )

    async def _after_timeout(self, topic: FactsTopic, producer: Producer, seed: Seed, error: OutcomeUnknown) -> bool:
        """Its end, or that of its abort, was not answered: once its id is initialised, it is over. Raises OutcomeUnknown,
        LogUnavailable where nothing was written."""
        try:
            await producer.initialise()
        except (LogUnavailable, LogUnusable) as again:
            raise _unknown(again) from error
        if await _is_committed(topic, seed):
            return True
        raise LogUnavailable(
            f"the brokers did not answer for {ANSWER_WITHIN_S:g} s; nothing was written: run it again"
        ) from error


def _new_seed(application: str) -> Seed:
    return Seed(f"{application}.seed.{uuid.uuid4().hex[:12]}")


async def _initialised(producer: Producer, limit_s: float) -> None:
    try:
        await producer.initialise()
    except KafkaRefused as error:
        if error.code != INVALID_TRANSACTION_TIMEOUT:
            raise
        raise LogUnusable(
            f"{error.what}: the brokers allow no transaction of {limit_s:g} s, which is Kafka's default, and do not let this "
            "user see their limit: allow DescribeConfigs on the cluster, or raise transaction.max.timeout.ms"
        ) from error


async def _is_committed(topic: FactsTopic, seed: Seed) -> bool:
    """Of one that is over. Raises OutcomeUnknown."""
    try:
        await topic.read_settled(UNDER_LEASE)
    except LogUnavailable as error:
        raise _unknown(error) from error
    return topic.view.seed() == Seed(seed.transactional_id, committed=True)


def _unknown(error: StateError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the brokers did not say whether what was written last is in the log ({error}): it is there whole, or not at all; once they "
        "answer, run the same command again: a backfill that is there says that the application has positions"
    )


async def _abandon(producer: Producer) -> None:
    """Nothing is left open that would hide records of other writers until the brokers abort it."""
    with contextlib.suppress(StateError, TimeoutError):
        async with asyncio.timeout(_ABANDON_S):
            await producer.initialise()


def _now() -> float:
    return asyncio.get_running_loop().time()
