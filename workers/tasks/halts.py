"""Tasks that are halted for the whole group: a processor stopped at a record, and `--on-halt continue` keeps the others going.

One rule: a halt is in the log before the task is given up, so no next owner tries the record again. Its owner holds a
halted task and processes nothing; `orchestrator resume` takes the halt back, or has the record skipped. A skip stays in
the log until it is committed, also behind a later halt, and all changes of a halt are made with compare-and-set. Every
worker looks whether a halt of a task that it holds was taken back (`halt_watch.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from pipeline.errors import DueCallId, ProcessorFailed, shown_place
from state.log.group_store import GroupStore, MetadataKind
from state.log.protocol import GroupLog, Partition

logger = logging.getLogger("orchestrator.task")
HALTS = MetadataKind("halt")
Place = tuple[str, int, int]  # of a record: topic, partition, offset


class Halt(msgspec.Struct, frozen=True):
    """Why a task processes nothing: the record, and what its processor failed with. `skip`: go on behind the record.
    `skips`: records of earlier halts that are to be skipped and were not committed when this halt was written. `due`: the
    call, where there is no record for it; `due_skips` those of earlier halts."""

    topic: str
    partition: int
    offset: int
    error: str
    at_ms: int
    skip: bool = False
    skips: tuple[Place, ...] = ()
    due: DueCallId | None = None
    due_skips: tuple[DueCallId, ...] = ()

    @property
    def left_out(self) -> tuple[Place, ...]:
        """All records that are to be skipped."""
        return (*self.skips, self.place) if self.skip and not self.is_due else self.skips

    @property
    def due_left_out(self) -> tuple[DueCallId, ...]:
        """All calls for no record that are to be skipped."""
        return (*self.due_skips, self.due) if self.skip and self.due is not None else self.due_skips

    @property
    def place(self) -> Place:
        return self.topic, self.partition, self.offset

    @property
    def record(self) -> str:
        return shown_place(self.topic, self.partition, self.offset)

    @property
    def is_due(self) -> bool:
        """Whether it was no record, but a timer, a window or a join of a table that came due."""
        return self.offset < 0

    def with_records(self, moved: Callable[[Place], Place]) -> Halt:
        """The same where records lie at other places."""

        def call(one: DueCallId) -> DueCallId:
            return one if one.record is None else one._replace(record=moved(one.record))

        topic, partition, offset = self.place if self.is_due else moved(self.place)
        return Halt(
            topic,
            partition,
            offset,
            self.error,
            self.at_ms,
            self.skip,
            tuple(map(moved, self.skips)),
            None if self.due is None else call(self.due),
            tuple(map(call, self.due_skips)),
        )

    @property
    def records(self) -> tuple[Place, ...]:
        """All records that it names."""
        calls = self.due_skips if self.due is None else (*self.due_skips, self.due)
        places = self.skips if self.is_due else (*self.skips, self.place)
        return (*places, *(call.record for call in calls if call.record is not None))

    def skips_again(self, other: Halt) -> bool:
        """Whether what halted a task by `other` is to be skipped by this one."""
        return other.due in self.due_left_out if other.is_due else other.place in self.left_out


def of_failure(error: ProcessorFailed, at_ms: int) -> Halt:
    return Halt(error.topic, error.partition, error.offset, str(error), at_ms, due=error.due)


def encode(halt: Halt) -> bytes:
    return msgspec.json.encode(halt)


def decode(value: bytes) -> Halt:
    return msgspec.json.decode(value, type=Halt)


async def read(store: GroupStore, application: str, task: str) -> Halt | None:
    """The halt of one task; None where it is not halted."""
    found = await store.metadata(application, HALTS, task)
    return None if found is None else decode(found)


async def read_all(store: GroupStore, application: str) -> dict[str, Halt]:
    """The halts of an application by task."""
    return {task: decode(value) for task, value in (await store.metadata_of(application, HALTS)).items()}


async def write(log: GroupLog, application: str, task: str, halt: Halt) -> bool:
    """Writes a halt, with the skips before it that are not committed yet. Returns False, with nothing written, where its
    record is to be skipped by now: a call of it that began before `resume --skip` ended after it."""
    while True:
        seen = await log.metadata(application, HALTS, task)
        if seen is None:
            value = encode(halt)
        else:
            before = await _not_committed(log, application, decode(seen))
            if before.skips_again(halt):
                return False
            value = encode(msgspec.structs.replace(halt, skips=before.left_out, due_skips=before.due_left_out))
        if await log.replace_metadata(application, HALTS, task, seen, value):
            return True


async def _not_committed(log: GroupLog, application: str, halt: Halt) -> Halt:
    """What is to be skipped, without what the log knows to be committed. Of what came due the owner knows (`halt_watch`)."""
    calls = halt.due_left_out
    records = [place for place in (*halt.left_out, *(call.record for call in calls)) if place is not None]
    positions = await log.positions(application, [Partition(*place[:2]) for place in records])
    kept = tuple(place for place in halt.left_out if not is_behind(positions, place))
    kept_calls = tuple(call for call in calls if call.record is None or not is_behind(positions, call.record))
    return msgspec.structs.replace(halt, skip=False, skips=kept, due_skips=kept_calls)


def is_behind(positions: Mapping[Partition, int], place: Place) -> bool:
    """Whether positions lie behind a record."""
    return positions.get(Partition(*place[:2]), 0) > place[2]


async def not_outrun(
    log: GroupLog, application: str, task: str, halt: Halt | None, positions: Mapping[Partition, int]
) -> Halt | None:
    """The halt of a task that begins at these positions. One whose record is there and committed was written late, by an owner that had
    lost the task, and is taken back. One whose record retention has removed stays, though the task would begin behind it."""
    while halt is not None and not halt.skip and not halt.is_due and is_behind(positions, halt.place):
        partition = Partition(*halt.place[:2])
        committed, starts = await log.positions(application, [partition]), await log.starts([partition])
        if not is_behind(committed, halt.place) or starts[partition] > halt.offset:
            return halt
        seen = await log.metadata(application, HALTS, task)
        if seen is not None and decode(seen) == halt and await take_back(log, application, task, seen, skip=False):
            logger.warning("%s was halted at %s, which is committed by now: it goes on", task, halt.record)
        halt = await read(log, application, task)
    return halt


async def take_back(log: GroupLog, application: str, task: str, seen: bytes, *, skip: bool) -> bool:
    """The task of the halt that was `seen` goes on; with `skip` behind its record. Skips of earlier halts are kept.
    Returns False, with nothing done, where it is another halt by now, or none."""
    halt = decode(seen)
    if skip:
        value = encode(msgspec.structs.replace(halt, skip=True))
    elif halt.due_skips:
        *calls, due = halt.due_skips
        value = encode(Halt(due.name, halt.partition, -1, halt.error, halt.at_ms, True, halt.skips, due, tuple(calls)))
    elif halt.skips:
        *before, (topic, partition, offset) = halt.skips
        value = encode(Halt(topic, partition, offset, halt.error, halt.at_ms, skip=True, skips=tuple(before)))
    else:
        value = None
    return await log.replace_metadata(application, HALTS, task, seen, value)
