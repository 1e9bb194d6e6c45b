"""The log as a worker uses it: one that is busy, full or away is waited for, and every loop above it goes on by itself.

One rule: only calls of which the log says that nothing was written are made again (`LogUnavailable`). The wait has an
end, `--log-timeout`: then LogTimedOut ends the worker. Coordinators wait as well, and so keep their sessions; the lease
decides whose the next write is. A wrapper around `GroupLog`; `waiting` is what `status` shows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NoReturn, TypeVar

from state.errors import LeaseGivenUp, LogDamaged, LogTimedOut, LogUnavailable, OutcomeUnknown, StateError
from state.log.group_store import AppMetadata, Lease, MetadataKind, OwnerRecord
from state.log.protocol import (
    EXACTLY_ONCE,
    Compacted,
    Fetched,
    GroupLog,
    Guarantee,
    Intended,
    MayWrite,
    NewRecord,
    Partition,
    Parts,
    Reader,
    Retention,
    Spread,
    TaskCommit,
    TopicInfo,
    TopicSpec,
    always,
    no_parts,
)

T = TypeVar("T")

log = logging.getLogger("orchestrator.log")
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
SILENT_S = 5.0  # without an answer to any call: longer than an election among brokers, or a disk's hiccup
UNCLEAR_S = 10.0  # between outcomes that are not known: what is asked more rarely shows nothing of the time between
LATE_S = 1.0  # a look that comes so much later finds that this process stood still, not the log


class End:
    """Of waiting for one log: once a call has waited too long, others try once and do not wait, until one is answered."""

    def __init__(self) -> None:
        self.reason = ""


class Patience:
    """How long calls of one kind ("read", "write") have been waiting for the log. `end`: of waiting, for both kinds."""

    def __init__(self, kind: str, limit_s: float, clock: Callable[[], float], end: End) -> None:
        self.reason = ""  # of the wait; "" where nothing waits
        self.waits = 0
        self.waited_s = 0.0  # in waits that are over
        self._end = end
        self._kind = kind
        self._limit_s = limit_s
        self._clock = clock
        self._since = 0.0
        self._under_way: set[object] = set()  # calls
        self._stuck: set[object] = (
            set()
        )  # those of them that the log has refused, or had not answered when the wait began
        self._last_answer_at = 0.0  # when the log answered last, or the first of these calls began
        self._unclear_since, self._unclear_at = 0.0, -math.inf  # the first and the last of outcomes that are not known
        self._is_silent = False  # the reason is that calls under way have no answer
        self._look: asyncio.TimerHandle | None = None

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of `call`, made again until the log can be used. Raises LogTimedOut."""
        pause, own, is_given_up = PAUSE_S, object(), False
        self._begins(own)
        try:
            while True:
                begun = self._clock()
                try:
                    answer = await call()
                except LogUnavailable as error:
                    if self._end.reason:
                        raise LogTimedOut(self._end.reason) from error
                    self._stuck.add(own)
                    self._away(error, begun)
                    await asyncio.sleep(min(pause, self._left_s()))
                    pause = min(PAUSE_MAX_S, pause * 2)
                except (LogTimedOut, LeaseGivenUp):  # no answer of the log
                    raise
                except OutcomeUnknown as error:
                    self._unclear(error, begun)
                    raise
                except StateError:  # a refusal is an answer
                    self._answered(own)
                    raise
                else:
                    self._answered(own)
                    return answer
        except asyncio.CancelledError:
            is_given_up = True
            raise
        finally:
            self._ends(own, is_given_up=is_given_up)

    def _begins(self, call: object) -> None:
        """One look serves all calls: a timer for each would cost more than most of them."""
        if not self._under_way:
            self._last_answer_at = self._clock()
        self._under_way.add(call)
        if self._look is None:
            self._look_in(SILENT_S)

    def _ends(self, call: object, *, is_given_up: bool) -> None:
        """Of one without an answer, too: where no other waits, none is left that would get it."""
        self._under_way.discard(call)
        if call in self._stuck:
            self._stuck.discard(call)
            if not self._stuck and (is_given_up or self._is_silent):
                self._over()

    def _look_in(self, seconds: float) -> None:
        self._look = asyncio.get_running_loop().call_later(seconds, self._look_now, self._clock() + seconds)

    def _look_now(self, due: float) -> None:
        """A call may last for as long as a port's own tries do, half a minute on Kafka: an operator sees it before."""
        self._look = None
        if not self._under_way:
            return
        now = self._clock()
        if now - due > LATE_S:
            self._last_answer_at = now
        silent_s = now - self._last_answer_at
        if silent_s >= SILENT_S and not self.reason:
            self._is_silent = True
            self._stuck |= self._under_way
            self._begin_wait(self._last_answer_at, f"no answer for {SILENT_S:g} s")
        self._look_in(SILENT_S - silent_s if silent_s < SILENT_S else SILENT_S)

    def _left_s(self) -> float:
        """Seconds to the last try: at the limit, or soon where that has passed."""
        return max(PAUSE_S, self._since + self._limit_s - self._clock())

    def _away(self, error: LogUnavailable, begun: float) -> None:
        """Gives up after a try that began past the limit. One that began before it shows nothing about the log as it is now: the
        process may have been stopped in between."""
        self._last_answer_at = self._clock()
        if not self.reason or self._is_silent:
            self._begin_wait(self._since if self._is_silent else begun, str(error))
        self.reason, self._is_silent = str(error), False
        if begun - self._since >= self._limit_s:
            self._give_up(error)

    def _unclear(self, error: OutcomeUnknown, begun: float) -> None:
        """Who asked looks what became of it, and tries again: where one try after the other ends so, as on a disk that fails, nothing else
        would end it."""
        before, self._unclear_at = self._unclear_at, self._clock()
        if begun - before > UNCLEAR_S:
            self._unclear_since = self._unclear_at  # not since it began: the process may have been stopped in between
        if begun - self._unclear_since >= self._limit_s:
            self._give_up(error)

    def _give_up(self, error: StateError) -> NoReturn:
        self._end.reason = (
            f"the log could not be used for {self._limit_s:g} s ({error}); nothing is lost: what was not committed is "
            "processed again at the next start; --log-timeout says how long to wait"
        )
        raise LogTimedOut(self._end.reason) from error

    def _begin_wait(self, since: float, reason: str) -> None:
        if not self.reason:
            self.waits += 1
        self._since, self.reason = since, reason
        log.warning("waiting for the log to be %s: %s", "written" if self._kind == "write" else "read", reason)

    def _answered(self, call: object) -> None:
        """The wait is over once none waits of those that began it: a log may take what others write, of other partitions."""
        self._end.reason, self._last_answer_at, self._unclear_at = "", self._clock(), -math.inf
        self._stuck.discard(call)
        if self.reason and not self._stuck:
            log.warning("the log can be used again after %.1f s", self._clock() - self._since)
            self._over()

    def _over(self) -> None:
        self.waited_s += self._clock() - self._since
        self.reason, self._is_silent = "", False


class PatientReader:
    """See `state.log.protocol.Reader`."""

    def __init__(self, reader: Reader, patience: Patience) -> None:
        self._reader = reader
        self._patience = patience

    def add(self, partition: Partition, position: int) -> None:
        self._reader.add(partition, position)

    def drop(self, partition: Partition) -> None:
        self._reader.drop(partition)

    async def poll(self, *, max_bytes_per_partition: int = 1 << 20, wait_ms: int = 0) -> list[Fetched]:
        async def once() -> list[Fetched]:
            try:
                return await self._reader.poll(max_bytes_per_partition=max_bytes_per_partition, wait_ms=wait_ms)
            except LogDamaged as error:  # it may have been damaged on its way: a read is made again
                raise LogUnavailable(str(error)) from error

        return await self._patience(once)

    async def close(self) -> None:
        await self._reader.close()


async def open_patiently(
    open_: Callable[[], Awaitable[GroupLog]], limit_s: float, clock: Callable[[], float]
) -> PatientLog:
    """The log that `open_` opens; one that cannot be opened now is waited for as well. Raises LogTimedOut."""
    return PatientLog(await Patience("read", limit_s, clock, End())(open_), limit_s, clock)


class PatientLog:
    """See `state.log.protocol.GroupLog` and the module text; `limit_s` is the log timeout."""

    def __init__(self, log: GroupLog, limit_s: float, clock: Callable[[], float]) -> None:
        self.inner = log
        self.log_id = log.log_id
        self.position_lifetime_ms = log.position_lifetime_ms
        self.writer_lifetime_ms = log.writer_lifetime_ms
        end = End()
        self._read = Patience("read", limit_s, clock, end)
        self._write = Patience("write", limit_s, clock, end)

    @property
    def waiting(self) -> str:
        """Why calls wait; "" where none does."""
        return self._write.reason or self._read.reason

    def waits(self) -> tuple[int, float]:
        """How often calls began to wait, and the seconds of those waits that are over."""
        return self._read.waits + self._write.waits, self._read.waited_s + self._write.waited_s

    async def close(self) -> None:
        await self.inner.close()

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """A call of a user of the log that has no patience of its own, with it. Raises LogTimedOut."""
        return await self._write(call)

    # topics

    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        return await self._write(lambda: self.inner.create_topic(spec))

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        return await self._write(lambda: self.inner.grow_topic(name, partitions))

    async def delete_topic(self, name: str) -> None:
        await self._write(lambda: self.inner.delete_topic(name))

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return await self._read(lambda: self.inner.topics(names))

    async def names(self) -> list[str]:
        return await self._read(self.inner.names)

    async def ends(self, partitions: Collection[Partition], *, settled: bool = False) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.ends(partitions, settled=settled))

    async def known_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.known_ends(partitions))

    async def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.written(partitions))

    async def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.starts(partitions))

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.forgotten(partitions))

    def epoch(self, partition: Partition) -> int:
        return self.inner.epoch(partition)

    async def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.epoch_ends(epochs))

    def reader(self) -> PatientReader:
        return PatientReader(self.inner.reader(), self._read)

    # writing

    async def append(
        self,
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: AppMetadata | None = None,
        seen: bytes | None = None,
    ) -> dict[Partition, int]:
        return await self._write(lambda: self.inner.append(records, metadata=metadata, seen=seen))

    async def open_writer(self, application: str, transactional_id: str) -> None:
        await self._write(lambda: self.inner.open_writer(application, transactional_id))

    async def check_alone(self, application: str) -> None:
        await self._read(lambda: self.inner.check_alone(application))

    async def check_rights(self, application: str, wanted: Intended) -> None:
        await self._read(lambda: self.inner.check_rights(application, wanted))

    def fences(self, guarantee: Guarantee) -> bool:
        return self.inner.fences(guarantee)

    async def commit(
        self,
        application: str,
        transactional_id: str,
        tasks: Sequence[TaskCommit],
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        may_write: MayWrite = always,
    ) -> dict[Partition, int]:
        return await self._write(
            lambda: self.inner.commit(application, transactional_id, tasks, guarantee=guarantee, may_write=may_write)
        )

    async def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        return await self._write(lambda: self.inner.fence(lease, transactional_ids))

    # positions

    async def positions(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.positions(application, partitions, settled=settled))

    async def lost(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.lost(application, partitions, settled=settled))

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.set_elsewhere(application, partitions, settled=settled))

    async def committed_ms(self, application: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.committed_ms(application, partitions))

    async def seed_positions(
        self,
        lease: Lease,
        positions: Mapping[Partition, int],
        records: Mapping[Partition, Sequence[NewRecord]],
        *,
        metadata: Sequence[AppMetadata] = (),
        parts: Parts = no_parts,
        spread: Spread | None = None,
    ) -> bool:
        return await self._write(
            lambda: self.inner.seed_positions(lease, positions, records, metadata=metadata, parts=parts, spread=spread)
        )

    async def forget_positions(self, lease: Lease, partitions: Collection[Partition]) -> None:
        await self._write(lambda: self.inner.forget_positions(lease, partitions))

    # upkeep

    async def compact(self, topic: str) -> Compacted:
        return await self._write(lambda: self.inner.compact(topic))

    async def trim(self, positions: Mapping[Partition, int]) -> int:
        return await self._write(lambda: self.inner.trim(positions))

    async def set_retention(self, topic: str, retention: Retention) -> TopicInfo:
        return await self._write(lambda: self.inner.set_retention(topic, retention))

    async def expired(self, partitions: Collection[Partition], *, at_once: bool = False) -> dict[Partition, int]:
        return await self._read(lambda: self.inner.expired(partitions, at_once=at_once))

    # the group store

    async def lease(self, application: str) -> Lease | None:
        return await self._read(lambda: self.inner.lease(application))

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        return await self._write(lambda: self.inner.acquire(application, holder, address, seen))

    async def renew(self, lease: Lease) -> Lease:
        return await self._write(lambda: self.inner.renew(lease))

    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        return await self._read(lambda: self.inner.owners(application))

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        await self._write(lambda: self.inner.record_owners(lease, records))

    async def metadata(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        return await self._read(lambda: self.inner.metadata(application, kind, key))

    async def metadata_of(self, application: str, kind: MetadataKind, *, settled: bool = False) -> dict[str, bytes]:
        return await self._read(lambda: self.inner.metadata_of(application, kind, settled=settled))

    async def metadata_of_all(self, kind: MetadataKind, key: str) -> dict[str, bytes]:
        return await self._read(lambda: self.inner.metadata_of_all(kind, key))

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        await self._write(lambda: self.inner.put_metadata(application, kind, key, value, lease=lease))

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        return await self._write(lambda: self.inner.replace_metadata(application, kind, key, seen, value))
