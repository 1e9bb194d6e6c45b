"""Tasks that are halted for the whole group: a processor stopped at a record, and `--on-halt continue` keeps the others going.

One rule: a halt is in the log before the task is given up, so no next owner tries the record again. Its owner holds a
halted task and processes nothing; `orchestrator resume` takes the halt back, or has the record skipped. A skip stays in
the log until it is committed, also behind a later halt, and all changes of a halt are made with compare-and-set. Every
worker looks whether a halt of a task that it holds was taken back (`halt_watch.py`).
"""

from __future__ import annotations

import msgspec

from pipeline.errors import ProcessorFailed, shown_place
from state.log.group_store import GroupStore, MetadataKind
from state.log.protocol import GroupLog, Partition

HALTS = MetadataKind("halt")
Place = tuple[str, int, int]  # of a record: topic, partition, offset


class Halt(msgspec.Struct, frozen=True):
    """Why a task processes nothing: the record, and what its processor failed with. `skip`: go on behind the record.
    `skips`: records of earlier halts that are to be skipped and were not committed when this halt was written."""

    topic: str
    partition: int
    offset: int
    error: str
    at_ms: int
    skip: bool = False
    skips: tuple[Place, ...] = ()

    @property
    def left_out(self) -> tuple[Place, ...]:
        """All records that are to be skipped."""
        return (*self.skips, self.place) if self.skip else self.skips

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


def of_failure(error: ProcessorFailed, at_ms: int) -> Halt:
    return Halt(error.topic, error.partition, error.offset, str(error), at_ms)


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
        skips = () if seen is None else await _not_committed(log, application, decode(seen).left_out)
        if halt.place in skips:
            return False
        value = encode(msgspec.structs.replace(halt, skips=skips))
        if await log.replace_metadata(application, HALTS, task, seen, value):
            return True


async def _not_committed(log: GroupLog, application: str, places: tuple[Place, ...]) -> tuple[Place, ...]:
    partitions = [Partition(topic, number) for topic, number, _ in places]
    positions = await log.positions(application, partitions)
    return tuple(place for place in places if positions.get(Partition(*place[:2]), 0) <= place[2])


async def take_back(log: GroupLog, application: str, task: str, seen: bytes, *, skip: bool) -> bool:
    """The task of the halt that was `seen` goes on; with `skip` behind its record. Skips of earlier halts are kept.
    Returns False, with nothing done, where it is another halt by now, or none."""
    halt = decode(seen)
    if skip:
        value = encode(msgspec.structs.replace(halt, skip=True))
    elif halt.skips:
        *before, (topic, partition, offset) = halt.skips
        value = encode(Halt(topic, partition, offset, halt.error, halt.at_ms, skip=True, skips=tuple(before)))
    else:
        value = None
    return await log.replace_metadata(application, HALTS, task, seen, value)
