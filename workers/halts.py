"""Tasks that are halted for the whole group: a processor stopped at a record, and `--on-halt continue` keeps the others going.

One rule: a halt is in the log before the task is given up, so no next owner tries the record again. Its owner holds a
halted task and processes nothing; `orchestrator resume` takes the halt back, or has the record skipped. Every worker
looks once a heartbeat whether a halt of a task that it holds was taken back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from pipeline.errors import ProcessorFailed
from state.log.group_store import GroupStore, MetadataKind
from state.log.protocol import Partition

if TYPE_CHECKING:
    from workers.task import TaskRun
    from workers.worker import Worker

HALTS = MetadataKind("halt")


class Halt(msgspec.Struct, frozen=True):
    """Why a task processes nothing: the record, and what its processor failed with. `skip`: go on behind the record."""

    topic: str
    partition: int
    offset: int
    error: str
    at_ms: int
    skip: bool = False

    @property
    def record(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


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


async def write(store: GroupStore, application: str, task: str, halt: Halt) -> None:
    await store.put_metadata(application, HALTS, task, encode(halt))


async def run(worker: Worker) -> None:
    """Look once a heartbeat at the tasks that are halted here, until cancelled."""
    pause = worker.spec.instance.settings.heartbeat_ms / 1000
    while True:
        await asyncio.sleep(pause)
        held = [(run, run.halt) for run in worker.runs.values() if run.halt is not None and run.halt_is_written]
        if not held:
            continue
        found = await read_all(worker.log, worker.application)
        for one, halt in held:
            if worker.runs.get(one.id) is one and one.halt is halt:
                await _look(worker, one, found.get(one.scope))


async def _look(worker: Worker, run: TaskRun, found: Halt | None) -> None:
    if run.process is None:
        if found is None or found.skip:
            run.resume(found)
    elif found is not None and found.skip:
        position = run.committed.get(Partition(found.topic, found.partition), 0)
        if position > found.offset:
            await _is_over(worker, run)


async def _is_over(worker: Worker, run: TaskRun) -> None:
    """The skip is committed: the halt goes from the log, unless the task was halted at a later record meanwhile."""
    halt = run.halt
    async with worker.halting:
        if run.halt is halt:
            await worker.log.put_metadata(worker.application, HALTS, run.scope, None)
        if run.halt is halt:
            run.halt = None
