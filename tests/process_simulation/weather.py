"""The log as one process reaches it: the shared log in memory behind delays and faults.

One rule: a call is made, or not, as a whole and in the order in which the process made its calls; what a fault decides is
when, whether, and what the caller hears of it. A write that was handed in goes on when its caller is cancelled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from state.errors import (
    Fenced,
    LogBusy,
    LogDamaged,
    LogFull,
    LogUnavailable,
    NotOpened,
    OutcomeUnknown,
    PositionOutOfRange,
    Refused,
    StateError,
)
from state.log.group_store import Lease
from state.log.memory import MemoryLog
from state.log.protocol import Fetched, Guarantee, MayWrite, Partition, TaskCommit
from tests.process_simulation.process import DEAD, Process, current

if TYPE_CHECKING:
    from tests.process_simulation.loop import VirtualLoop

READS = (
    "topics",
    "ends",
    "known_ends",
    "written",
    "expired",
    "starts",
    "positions",
    "committed_ms",
    "lost",
    "check_alone",
    "names",
    "epoch_ends",
    "lease",
    "owners",
    "metadata",
    "metadata_of",
    "metadata_of_all",
)
WRITES = (
    "create_topic",
    "grow_topic",
    "delete_topic",
    "append",
    "open_writer",
    "commit",
    "seed_positions",
    "forget_positions",
    "acquire",
    "renew",
    "record_owners",
    "fence",
    "end_left_open",
    "put_metadata",
    "replace_metadata",
    "compact",
    "set_retention",
    "trim",
)
T = TypeVar("T")
BUSY_WAIT_S = 2.0  # how long a call waits for a locked log before it says so


@dataclass
class Weather:
    """What befalls calls of the log, for all processes or for one. Times are the loop's."""

    chance: random.Random
    delay_max: float = 0.002
    locked_until: float = 0.0
    full_until: float = 0.0
    away_until: float = 0.0
    refused: int = 0  # so many of the next commits of several parts are refused for the first one
    fenced: int = 0  # so many of the next commits are answered as if their writer was fenced
    unknown: int = 0  # so many of the next commits are answered by nobody
    damaged: int = 0  # so many of the next polls meet bytes that cannot be read
    survives: bool = True  # whether a write that is on its way when its process dies is made

    def delay(self) -> float:
        return self.chance.random() * self.delay_max

    def is_there(self, now: float) -> None:
        """Raises LogUnavailable."""
        if self.away_until > now:
            raise LogUnavailable("the log cannot be reached: nothing was written; try again")

    def answer(self, application: str, writer: str, parts: Sequence[TaskCommit]) -> None:
        """A refusal or a fence that nobody asked for. Raises Refused, Fenced."""
        if self.refused and len(parts) > 1:
            self.refused -= 1
            raise Refused(frozenset({parts[0].scope}), f"{writer} does not own {parts[0].scope}; nothing was written")
        if self.fenced:
            self.fenced -= 1
            raise Fenced(f"writer {writer} was fenced")


class Judge(Protocol):
    """Who hears what the log answered."""

    def committed(self, process: Process, parts: Sequence[TaskCommit], ends: dict[Partition, int]) -> None: ...

    def written(self, process: Process, parts: Sequence[TaskCommit], ends: dict[Partition, int]) -> None: ...

    def positioned(self, process: Process, parts: Sequence[TaskCommit]) -> None: ...

    def answered(self, process: Process, name: str, who: str, error: Exception) -> None: ...

    def not_committed(self, process: Process, parts: Sequence[TaskCommit], error: Exception | None) -> None: ...

    def cannot_be_read(self, process: Process, error: PositionOutOfRange) -> None: ...

    def breaks(self, why: str) -> None: ...


class LogClient:
    """See the module text. All of `state.log.protocol.GroupLog`."""

    def __init__(self, loop: VirtualLoop, shared: MemoryLog, weather: Weather, judge: Judge) -> None:
        self.log_id = shared.log_id
        self.position_lifetime_ms: int | None = None
        self.writer_lifetime_ms: int | None = None
        self.leaves_open = False
        self._loop = loop
        self._shared = shared
        self._weather = weather
        self._judge = judge
        self._last = 0.0
        self._commits = 0  # under way
        self.loses_appends = False  # whether an answer that is lost may be that of an append

    async def close(self) -> None:
        """Nothing to let go of."""

    def reader(self) -> ReaderClient:
        return ReaderClient(self._loop, self._shared.reader(), self._weather, self._judge)

    async def set_elsewhere(
        self, application: str, partitions: Collection[Partition], *, settled: bool = True
    ) -> dict[Partition, int]:
        """No other program is simulated, so nothing is asked."""
        return {}

    async def forgotten(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Answered at once: it is asked between two questions that take their time."""
        return await self._shared.forgotten(partitions)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name in READS:
            return lambda *args, **more: self._call(name, args, more, writes=False)
        if name in WRITES:
            return lambda *args, **more: self._call(name, args, more, writes=True)
        raise AttributeError(name)

    def epoch(self, partition: Partition) -> int:
        return self._shared.epoch(partition)

    def fences(self, guarantee: Guarantee) -> bool:
        return self._shared.fences(guarantee)

    async def _call(self, name: str, args: tuple[Any, ...], more: dict[str, Any], *, writes: bool) -> Any:
        loop, weather, process = self._loop, self._weather, current()
        await self._is_there(writes=writes)
        if name == "commit" and not self._shared.fences(more["guarantee"]):
            return await self._commit_unfenced(*args, more["may_write"])
        lost = after = False
        if weather.unknown > 0 and (name == "commit" or (name == "append" and self.loses_appends)):
            weather.unknown -= 1
            lost, after = True, weather.chance.random() < 0.5
        answer = loop.create_future()

        def execute() -> None:
            if process.state == DEAD and not (writes and weather.survives):
                return
            if lost and not after:
                if name == "commit":
                    self._judge.not_committed(process, args[2], None)
                self._answer(name, answer, process, None, OutcomeUnknown("the log did not answer (and did nothing)"))
                return
            try:
                if name == "commit":
                    weather.answer(*args)
                result, error = _now(getattr(self._shared, name)(*args, **more)), None
            except Exception as raised:  # noqa: BLE001 - raised to the caller
                result, error = None, raised
            if name == "commit" and error is None:
                self._judge.committed(process, args[2], result)
            elif error is not None and not lost:  # an answer that is lost tells its process nothing
                self._judge.answered(process, name, _who(name, args, more), error)
            if name == "commit" and (error is not None or lost):
                self._judge.not_committed(process, args[2], None if lost else error)
            if lost:
                loop.tell(f"{process.name}: an answer is lost, the commit is made: {error or 'done'}")
                error = OutcomeUnknown("the log did not answer (it did what was asked)")
            self._answer(name, answer, process, result, error)

        if name == "commit":
            self._commits += 1
            if self._commits > 1:
                self._judge.breaks(f"overlap: {process.name} has {self._commits} commits under way")
        self._last = max(self._last, loop.time() + weather.delay())
        loop.call_at_always(self._last, execute)
        return await answer

    async def _is_there(self, *, writes: bool) -> None:
        loop, weather = self._loop, self._weather
        weather.is_there(loop.time())
        if writes and weather.locked_until > loop.time():
            await self._wait_for_the_lock()
        if writes and weather.full_until > loop.time():
            raise LogFull("the log has no space left: free some space on its disk")

    async def _commit_unfenced(
        self, application: str, writer: str, parts: Sequence[TaskCommit], may_write: MayWrite
    ) -> dict[Partition, int]:
        """Two requests, each with a way of its own; the process may end, or stand still, before, between and behind them.
        What is known of owners is looked at first, late, and never again."""
        process, weather, shared = current(), self._weather, self._shared
        try:
            weather.answer(application, writer, parts)
            if (application, writer) not in shared._opened:
                raise NotOpened(writer)
            if weather.chance.random() < 0.5:  # else it has not read of its fence yet: nothing but its clock stops it
                shared.check_writer(application, writer, parts)
        except StateError as error:
            self._judge.answered(process, "commit", writer, error)
            self._judge.not_committed(process, parts, error)
            raise
        lost = weather.unknown > 0
        if lost:
            weather.unknown -= 1

        def write() -> dict[Partition, int]:
            ends = shared.write_unfenced(parts)
            self._judge.written(process, parts, ends)
            return ends

        def position() -> None:
            shared.put_positions(application, parts)
            self._judge.positioned(process, parts)

        try:
            ends = await self._sent(process, write, may_write)
            if lost and weather.chance.random() < 0.5:
                raise OutcomeUnknown("the log did not answer (the records are there)")
            await self._sent(process, position, may_write)
            if lost:
                raise OutcomeUnknown("the log did not answer (it did what was asked)")
        except OutcomeUnknown:
            self._judge.not_committed(process, parts, None)
            raise
        return ends

    async def _sent(self, process: Process, request: Callable[[], T], may_write: MayWrite) -> T:
        """A request on its way: it is made however its sender fares meanwhile, or never."""
        if not may_write():
            raise OutcomeUnknown("nothing more was sent")
        loop, answer = self._loop, self._loop.create_future()

        def execute() -> None:
            if process.state == DEAD and not self._weather.survives:
                return
            done = request()
            loop.call_later(self._weather.delay(), loop.resolve, answer, done, context=process.context)

        self._last = max(self._last, loop.time() + self._weather.delay())
        loop.call_at_always(self._last, execute)
        return cast(T, await answer)

    def _answer(self, name: str, answer: Any, process: Process, result: Any, error: Exception | None) -> None:
        def give() -> None:
            if name == "commit":
                self._commits -= 1
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self._loop.call_later(self._weather.delay(), give, context=process.context)

    async def _wait_for_the_lock(self) -> None:
        loop, weather = self._loop, self._weather
        until = loop.time() + BUSY_WAIT_S
        free = loop.create_future()
        loop.call_at(min(until, weather.locked_until), loop.resolve, free, None)
        await free
        if weather.locked_until > loop.time():
            raise LogBusy("another process holds the log locked: nothing was written; try again")


class ReaderClient:
    """See `state.log.protocol.Reader`."""

    def __init__(self, loop: VirtualLoop, reader: Any, weather: Weather, judge: Judge) -> None:
        self._loop = loop
        self._judge = judge
        self._reader = reader
        self._weather = weather

    def add(self, partition: Partition, position: int) -> None:
        self._reader.add(partition, position)

    def drop(self, partition: Partition) -> None:
        self._reader.drop(partition)

    async def poll(self, **more: Any) -> list[Fetched]:
        current()
        self._weather.is_there(self._loop.time())
        if self._weather.damaged > 0:
            self._weather.damaged -= 1
            raise LogDamaged("record batches are cut off: the checksum does not match")
        try:
            found: list[Fetched] = await self._reader.poll(**more)
        except PositionOutOfRange as error:
            self._judge.cannot_be_read(current(), error)
            raise
        return found

    async def close(self) -> None:
        await self._reader.close()


def _who(name: str, args: tuple[Any, ...], more: dict[str, Any]) -> str:
    """Under which name a call was made: a transactional id, or the term of a lease."""
    if name in ("commit", "open_writer"):
        return str(args[1])
    lease = next((one for one in (*args, *more.values()) if isinstance(one, Lease)), None)
    return f"term {lease.term}" if lease is not None else "nobody"


def _now(call: Coroutine[Any, Any, Any]) -> Any:
    """The result of a call of the log in memory, which never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the log in memory waited")
