"""A producer on Kafka: sealed batches, one idempotent Produce, or one transaction with records and group offsets.

One rule: a request is sent again, the same to the byte, until it is answered: every one of them is idempotent. Records
and offsets go one after the other, never at once: the broker's checks of the two collide. A transaction is open only
within `transact`; `initialise` is what takes the id away from every process that had it before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest_v0,
    AddPartitionsToTxnRequest_v0,
    EndTxnRequest_v0,
    InitProducerIdRequest_v0,
)

from state.errors import (
    InvalidRecord,
    InvalidTime,
    LogUnavailable,
    OutcomeUnknown,
    RecordTooLarge,
    StateError,
    UnfitRecord,
)
from state.log.batches import Batch
from state.log.kafka import rights
from state.log.kafka.codes import INVALID_TXN_STATE, NONE, NOT_ATTEMPTED, KafkaRefused, Then, check, name_of, then
from state.log.kafka.connections import GROUP, TRANSACTION, Connections, is_answer
from state.log.kafka.left_open import ANYWHERE, LeftOpen, Written, with_place
from state.log.kafka.offsets import Offsets
from state.log.kafka.requests import TxnOffsetCommitRequest_v3
from state.log.kafka.rights import on
from state.log.kafka.sealing import seal
from state.log.kafka.topics import Topics
from state.log.kafka.unbuilt import Built, Unbuilt
from state.log.protocol import MayWrite, Partition, always

Codes = Callable[[Any], list[tuple[str, int]]]
_ALL_REPLICAS = -1
_PRODUCE_TIMEOUT_MS = 10_000
_PLAIN_WITHIN_S = 60.0  # outside of a transaction the end of this one is not waited for
_UNFIT: dict[Then, type[UnfitRecord]] = {
    Then.INVALID: InvalidRecord,
    Then.TIME: InvalidTime,
    Then.TOO_LARGE: RecordTooLarge,
}
_SEQUENCES = 1 << 31  # a sequence begins anew behind the largest one


class Identity(NamedTuple):
    """What a broker knows a producer by."""

    producer_id: int
    epoch: int


class ProducerFenced(Exception):
    """The id was initialised by another, or its transaction was aborted. What follows is the caller's to say."""


class NotEnded(OutcomeUnknown):
    """A transaction was to be aborted, and the broker did not answer: it did not take place, and its id cannot go on."""


class Producer:
    """See the module text. `transactional_id` None: idempotent only. `timeout_s`: the age at which brokers abort a transaction;
    `answer_s`: how long a request of one is tried again. `writes`: where transactions by this id may write. Its calls
    are made one after the other, by `turn`."""

    def __init__(
        self,
        connections: Connections,
        topics: Topics,
        offsets: Offsets,
        transactional_id: str | None,
        timeout_s: float,
        purpose: str,
        answer_s: float,
        writes: Written = ANYWHERE,
    ) -> None:
        self._connections = connections
        self._topics = topics
        self._offsets = offsets
        self._id = None if transactional_id is None else topics.names.inside(transactional_id)
        self._name = transactional_id or "an idempotent producer"
        self._timeout_s = timeout_s
        self._answer_s = answer_s
        self._purpose = purpose
        self.turn = asyncio.Lock()
        parts = connections, topics, offsets
        self._left_open = LeftOpen(*parts, self._id or "", writes, purpose, answer_s, self._end_again, self.turn)
        self._producer, self._epoch = -1, -1
        self._sequences: dict[Partition, int] = {}
        self._interrupted = False
        self._wrote_to: list[str] = []  # where the latest transaction was opened, as people read it
        self.is_torn = False
        """A transaction was aborted that had begun to write: what was sent may still come to its partitions, and may have used up
        numbers of their sequences, so that the next batch would be taken for it. `initialise` ends that, by another epoch."""

    async def initialise(self) -> None:
        """From now on no other process that had this id can write by it; a transaction of theirs is over when this returns, also
        where a broker left it open."""
        request = InitProducerIdRequest_v0(self._id, int(self._timeout_s * 1000))
        what = f"initialising {self._name}"
        was_committed: bool | None = None
        await self._left_open.ended()
        if self._id is None:
            answer = await self._connections.retried(what, lambda: self._first_id(what, request))
        else:
            inside = self._id

            async def before() -> None:  # each try: a transaction that is open now is ended by the first one
                nonlocal was_committed
                was_committed = await self._left_open.was_committed(was_committed)

            answer = await self._coordinated(
                what, TRANSACTION, inside, request, lambda got: [("", got.error_code)], before=before
            )
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._interrupted = self.is_torn = False
        await self._left_open.initialised(self._producer, was_committed)

    async def _end_again(self, partitions: Collection[Partition], group: str | None, *, committed: bool) -> None:
        """An end of no records, which also ends what this id had open there before."""
        await self._open(partitions, group)
        await self._end(committed=committed)

    def doubt(self) -> None:
        """A broker was connected to anew: it may have started again."""
        self._left_open.doubt()

    async def _first_id(self, what: str, request: Any) -> Any:
        answer = await self._connections.ask_any(request)
        check(what, answer.error_code, None, on(rights.CLUSTER, "IdempotentWrite", "kafka-cluster"))
        return answer

    @property
    def identity(self) -> Identity:
        """Of the transaction that is open, for `join` in other processes."""
        return Identity(self._producer, self._epoch)

    def join(self, identity: Identity) -> None:
        """Write within the transaction that another process has opened; that one initialises, and ends it."""
        self._producer, self._epoch = identity
        self._sequences.clear()

    # ------------------------------------------------------------------ writing

    async def continue_transaction(self, partition: Partition, batch: Batch) -> None:
        """A batch within the transaction that was joined. One that is refused has its place in the sequence as well. Raises
        ProducerFenced, and KafkaRefused where the sequence of the partition is another: it is beyond this batch."""
        try:
            await self._write_turn({partition: batch}, transactional=True, may_write=always)
        except KafkaRefused as error:
            if error.then is Then.FENCED:
                raise ProducerFenced(str(error)) from error
            self._pass(partition, batch)
            raise

    def _pass(self, partition: Partition, batch: Batch) -> None:
        self._sequences[partition] = (self._sequences.get(partition, 0) + batch.span) % _SEQUENCES

    async def produce(self, built: Built, may_write: MayWrite = always) -> dict[Partition, int]:
        """Write batches outside of a transaction; the offset behind the last record of each partition.
        Raises OutcomeUnknown, TooLate."""
        try:
            return await self._write(built, transactional=False, may_write=may_write)
        except StateError as error:
            if is_answer(error):
                raise
            raise OutcomeUnknown(f"{error}; whether the records are in the log is not known") from error

    async def transact(
        self,
        built: Built | Unbuilt,
        group: str | None = None,
        positions: Mapping[Partition, int] | None = None,
        times_ms: Mapping[Partition, int] | None = None,
        parts: AsyncIterator[Built] | None = None,
    ) -> dict[Partition, int]:
        """One transaction: all of it, with the batches that come in `parts`, or nothing. Raises ProducerFenced, OutcomeUnknown,
        LogUnavailable, and what a topic refuses: nothing was written then, and the producer may go on, once it is initialised where
        it `is_torn`. `times_ms` are kept beside the positions."""
        positions = positions or {}
        partitions: Collection[Partition] = built.partitions if isinstance(built, Unbuilt) else built.keys()
        if not partitions and not positions and parts is None:
            return {}
        if self._interrupted or self.is_torn:
            raise ProducerFenced(f"a transaction of {self._name} was interrupted in this process")
        self._interrupted = True  # also by a cancellation: what it had written must not go into the next one
        try:
            beginning = self._begin(partitions, group if positions else None, goes_on=parts is not None)
            if not isinstance(built, Unbuilt):
                await beginning
            elif isinstance(made := await built.beside(beginning), Exception):
                await self._abort(made)  # nothing was written
                self._interrupted = False
                raise made
            else:
                built = made
            try:
                behind = await self._write(built, transactional=True)
                if parts is not None:
                    behind |= await self._write_parts(parts, set(built))
                if positions and group is not None:
                    await self._add_positions(group, positions, times_ms or {})
            except Exception as error:
                await self._abort(error)
                self._interrupted, self.is_torn = False, True
                raise
            await self._end(committed=True)
        except KafkaRefused as error:
            if error.then is Then.FENCED:
                raise ProducerFenced(str(error)) from error
            raise
        self._interrupted = False
        self._left_open.committed(Written({*behind, *positions}, group if positions else None), behind)
        return behind

    async def _begin(self, partitions: Collection[Partition], group: str | None, *, goes_on: bool = False) -> None:
        """Where the coordinator does not answer, or the transaction before is not over, none has to be ended: what was added holds
        no records, and ends with the next one. Raises LogUnavailable then."""
        ends = None if goes_on else partitions  # others may be added to it
        try:
            await self._left_open.ready(ends, group)
            await self._open(partitions, group)
            while self._left_open.is_in_doubt:  # it was opened through a broker that started again
                await self._left_open.ready(ends, group)
                await self._open(partitions, group)
            self._left_open.begun()
            self._wrote_to = [*sorted({one.topic for one in partitions}), *([f"positions of {group}"] if group else [])]
        except LogUnavailable as error:
            self._interrupted = False
            raise with_place(error, self._wrote_to) from error.__cause__
        except Exception as error:
            await self._abort(error)
            self._interrupted = False
            raise

    async def _write_parts(self, parts: AsyncIterator[Built], opened: set[Partition]) -> dict[Partition, int]:
        """Within the open transaction; `opened`: the partitions that it has."""
        behind: dict[Partition, int] = {}
        async for part in parts:
            new = {partition: listed for partition, listed in part.items() if partition not in opened}
            if new:
                await self._open(new.keys(), None)
                opened |= new.keys()
            behind |= await self._write(part, transactional=True)
        return behind

    async def _abort(self, cause: Exception) -> None:
        """Leaves nothing open. Raises `cause` where the id is another's by now."""
        if isinstance(cause, KafkaRefused) and cause.then is Then.FENCED:
            raise cause
        try:
            await self._end(committed=False)
        except KafkaRefused as error:
            if error.code != INVALID_TXN_STATE:  # that: nothing was open yet
                raise
        except OutcomeUnknown as error:
            raise NotEnded(
                f"a transaction of {self._name} did not take place ({cause}), and the broker did not answer its end either: come "
                "back under another id, and do again what was in it"
            ) from error

    async def _open(self, partitions: Collection[Partition], group: str | None) -> None:
        steps: list[Awaitable[Any]] = []
        if partitions:
            by_topic = self._topics.names.by_topic(dict.fromkeys(partitions))
            listed = {topic: [number for number, _ in numbers] for topic, numbers in by_topic.items()}
            request = AddPartitionsToTxnRequest_v0(self._id, self._producer, self._epoch, list(listed.items()))
            steps.append(
                self._transactional(
                    "adding partitions",
                    request,
                    lambda got: [(topic, code) for topic, numbers in got.errors for _, code in numbers],
                )
            )
        if group is not None:
            inside = self._topics.names.inside(group)
            offsets = AddOffsetsToTxnRequest_v0(self._id, self._producer, self._epoch, inside)
            steps.append(self._transactional("adding offsets", offsets, lambda got: [("", got.error_code)], inside))
        answers = await asyncio.gather(*steps, return_exceptions=True)  # none is under way when this is over
        failed = [one for one in answers if isinstance(one, BaseException)]
        if failed:
            raise min(
                failed, key=lambda error: isinstance(error, LogUnavailable)
            )  # what is refused for good comes first

    async def _add_positions(
        self, group: str, positions: Mapping[Partition, int], times_ms: Mapping[Partition, int]
    ) -> None:
        inside = self._topics.names.inside(group)
        placed = self._topics.placed(positions, times_ms)
        topics: Any = [
            (topic, [(number, *what, {}) for number, what in numbers], {})
            for topic, numbers in self._topics.names.by_topic(placed).items()
        ]
        request = TxnOffsetCommitRequest_v3(self._id, inside, self._producer, self._epoch, -1, "", None, topics, {})
        what = f"committing positions of {group} by {self._name}"

        def codes(got: Any) -> list[tuple[str, int]]:
            return [(topic, code) for topic, numbers, _ in got.topics for _, code, _ in numbers]

        await self._coordinated(what, GROUP, inside, request, codes, inside)

    async def _end(self, *, committed: bool) -> None:
        """Raises OutcomeUnknown where a commit is not answered."""
        request = EndTxnRequest_v0(self._id, self._producer, self._epoch, committed)
        try:
            await self._transactional("ending a transaction", request, lambda got: [("", got.error_code)])
        except StateError as error:
            if isinstance(error, KafkaRefused) and error.then is Then.FENCED:
                raise
            raise OutcomeUnknown(
                f"the broker did not say whether a transaction of {self._name} took place ({error}): come back under another id, "
                "and restore from the log"
            ) from error

    async def _transactional(self, what: str, request: Any, codes: Codes, group: str = "") -> Any:
        return await self._coordinated(f"{what} of {self._name}", TRANSACTION, str(self._id), request, codes, group)

    async def _coordinated(
        self,
        what: str,
        kind: int,
        key: str,
        request: Any,
        codes: Codes,
        group: str = "",
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """The answer of a coordinator once every code in it is none; `codes` gives them with the topics that they are of. `before`:
        awaited before each try."""
        # A topic is added to be written; offsets are of topics that are read.
        operation = rights.READ if kind == GROUP else rights.WRITE

        async def ask() -> Any:
            if before is not None:
                await before()
            answer = await self._connections.coordinated(kind, key, request, self._purpose)
            for topic, code in sorted(codes(answer), key=lambda one: one[1] == NOT_ATTEMPTED):
                if code != NONE:
                    taken = on(rights.TRANSACTIONAL_ID, rights.WRITE, str(self._id))
                    taken += on(rights.TOPIC, operation, topic) + on(rights.GROUP, rights.READ, group)
                    refused = KafkaRefused(what, code, None, taken)
                    self._connections.forget_if_moved(kind, key, refused)
                    raise refused
            return answer

        return await self._connections.retried(what, ask, within_s=self._answer_s)

    # ------------------------------------------------------------------ records

    async def _write(self, built: Built, *, transactional: bool, may_write: MayWrite = always) -> dict[Partition, int]:
        """All batches, the next one of each partition at a time: a Produce takes one for each."""
        behind: dict[Partition, int] = {}
        for turn in range(max(map(len, built.values()), default=0)):
            batches = {partition: listed[turn] for partition, listed in built.items() if turn < len(listed)}
            behind |= await self._write_turn(batches, transactional, may_write)
        return behind

    async def _write_turn(
        self, batches: Mapping[Partition, Batch], transactional: bool, may_write: MayWrite
    ) -> dict[Partition, int]:
        sealed = {
            partition: seal(
                batch.data, self._producer, self._epoch, self._sequences.get(partition, 0), transactional=transactional
            )
            for partition, batch in batches.items()
        }
        bases: dict[Partition, int] = {}
        lost: set[Partition] = set()

        async def ask(node: int, listed: list[Partition]) -> dict[Partition, tuple[int, int]]:
            by_topic = self._topics.names.by_topic({partition: sealed[partition] for partition in listed})
            request = ProduceRequest_v7(
                self._id if transactional else None, _ALL_REPLICAS, _PRODUCE_TIMEOUT_MS, list(by_topic.items())
            )
            answer = await self._connections.send(node, request, self._purpose, may_write)
            found = {
                Partition(self._topics.names.outside(topic), one[0]): (one[1], one[2])
                for topic, numbers in answer.topics
                for one in numbers
            }
            lost.update(partition for partition, (code, _) in found.items() if then(code) is Then.LOST)
            return found

        try:
            bases = await self._topics.led(
                "writing",
                batches,
                ask,
                rights.WRITE,
                self._answer_s if transactional else _PLAIN_WITHIN_S,
                self._id or "",
            )
        except KafkaRefused as error:
            if (kind := _UNFIT.get(error.then)) is not None and error.partition is not None:
                what = f"writing to {Partition(*error.partition)}: {error.then.value} ({name_of(error.code)})"
                raise kind(what, error.partition, -1) from error
            error.lost_in = tuple(sorted(lost))
            raise
        for partition, batch in batches.items():
            self._pass(partition, batch)
        unknown = [partition for partition, base in bases.items() if base < 0]
        ends = await self._offsets.watermarks(unknown) if unknown else {}
        return {one: ends[one] if one in ends else base + batches[one].span for one, base in bases.items()}
