"""The commit of a worker: outputs, changelogs and positions of all its tasks in one log transaction, then the stores.

One rule (safety page, Commits): a store batch is written only after its transaction is known to be in the log; if the
outcome is unknown, or a store fails, the task is closed and restored from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pipeline.process import Changes
from state.errors import Fenced, OutcomeUnknown, Refused, StateError
from state.log.protocol import Log, NewRecord, Part, Partition
from workers.task import TaskRun

log = logging.getLogger("orchestrator.commit")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one task adds to a commit."""

    run: TaskRun
    changes: Changes
    part: Part


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a commit: tasks that are through, refused ones, and whether the writer is fenced as a whole."""

    done: tuple[Taken, ...] = ()
    lost: tuple[TaskRun, ...] = ()
    fenced: bool = False


def take(runs: Sequence[TaskRun]) -> list[Taken]:
    """Everything the tasks have to commit; tasks with nothing new are left out."""
    taken: list[Taken] = []
    for run in runs:
        if run.process is None:
            continue
        positions = {Partition(*place): offset for place, offset in run.merger.positions().items()}
        moved = {p: o for p, o in positions.items() if run.committed.get(p) != o}
        if not moved:
            continue
        changes = run.process.take()
        taken.append(Taken(run, changes, Part(run.scope, run.epoch, _records(run, changes), moved)))
    return taken


def _records(run: TaskRun, changes: Changes) -> dict[Partition, list[NewRecord]]:
    records = {
        Partition(*place): [NewRecord(r.key, r.value, r.timestamp_ms, r.headers) for r in outputs]
        for place, outputs in changes.outputs.items()
    }
    for table, writes in changes.writes.items():
        at_ms = changes.write_timestamp_ms[table]
        partition = run.stores[table].partition
        records[partition] = [NewRecord(key, value, at_ms) for key, value in writes.items()]
    return records


async def commit(
    log_: Log, application: str, writer: str, taken: list[Taken], before: Callable[[list[Taken]], Awaitable[None]]
) -> Outcome:
    """Commit; tasks that the log refuses are given up and the others tried again. `before` runs before each try."""
    lost: list[TaskRun] = []
    while taken:
        await before(taken)
        try:
            ends = await log_.commit(application, writer, [t.part for t in taken])
        except Fenced as error:
            log.warning("fenced: %s", error)
            return Outcome((), (*lost, *(t.run for t in taken)), fenced=True)
        except Refused as error:
            log.warning("refused: %s", error)
            lost += [t.run for t in taken if t.run.scope in error.scopes]
            taken = [t for t in taken if t.run.scope not in error.scopes]
            continue
        except OutcomeUnknown as error:
            log.error("the outcome of a commit is unknown, its tasks are restored: %s", error)
            return Outcome((), (*lost, *(t.run for t in taken)))
        done = [t for t in taken if _apply(t, ends)]
        return Outcome(tuple(done), (*lost, *(t.run for t in taken if t not in done)))
    return Outcome((), tuple(lost))


def _apply(taken: Taken, ends: dict[Partition, int]) -> bool:
    """Give the stores what the log has; False where one fails."""
    run = taken.run
    try:
        for table, writes in taken.changes.writes.items():
            opened = run.stores[table]
            opened.store.write(writes, ends[opened.partition])
    except StateError as error:
        log.error("%s: %s; it is restored from the log", run.id, error)
        return False
    if run.process is not None:
        run.process.settle()
    run.committed.update(taken.part.positions)
    return True
