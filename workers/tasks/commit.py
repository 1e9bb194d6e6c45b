"""The commit of a worker: outputs, changelogs and positions of all its tasks, by the app's guarantee, then the stores.

One rule (safety page, Commits): a store batch is written only after what it holds is known to be in the log; if the
outcome is unknown, or a store fails, the task is closed and restored from the log. What is committed of a task is what
its completed records did, with the positions after them; when that happens, CommitMachine decides.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from pipeline.process import Changes, TaskProcess
from state.changelog import LEADER_EPOCH
from state.errors import Fenced, NotOpened, OutcomeUnknown, RecordsLost, Refused, StateError, StoreDeleted, UnfitRecord
from state.log.entries import Entries
from state.log.protocol import EXACTLY_ONCE, Guarantee, Log, MayWrite, NewRecord, Partition, TaskCommit, always
from workers.calls.blame import Refusal
from workers.tasks.task import TaskRun

log = logging.getLogger("orchestrator.commit")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one task adds to a commit; `process` made it, and is asked to mark it applied when the store has it."""

    run: TaskRun
    process: TaskProcess
    changes: Changes
    part: TaskCommit


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a commit: tasks that are through, refused ones, and whether the writer is fenced as a whole."""

    done: tuple[Taken, ...] = ()
    lost: tuple[TaskRun, ...] = ()
    fenced: bool = False


def collect(run: TaskRun, at_ms: int, *, with_gaps: bool) -> Taken | None:
    """Everything that the completed records of a task did; None where there is nothing. `with_gaps`: offsets of which
    nothing waits and nothing is under way hold no record, so they count as read. `at_ms`: the wall time."""
    if run.process is None:
        return None
    changes = run.process.collect(in_parts=True)
    number = run.id.partition
    positions = {Partition(topic, number): offset for topic, offset in changes.positions.items()}
    if with_gaps:
        for place, offset in run.merger.gaps().items():
            partition = Partition(*place)
            positions[partition] = max(offset, positions.get(partition, 0))
    moved = {partition: offset for partition, offset in positions.items() if run.committed.get(partition) != offset}
    if run.commits_again:
        moved, run.commits_again = {**run.committed, **positions}, False
    part = TaskCommit(run.scope, run.epoch, _records(run, changes), moved, at_ms)
    if not moved and not part.records:
        run.process.mark_applied()
        return None
    return Taken(run, run.process, changes, part)


def _records(run: TaskRun, changes: Changes) -> dict[Partition, Sequence[NewRecord]]:
    # What a task wants written has the fields of what a log writes, which reads no others: no second object is made of each.
    records: dict[Partition, Sequence[NewRecord]] = {
        Partition(*place): cast(Sequence[NewRecord], outputs) for place, outputs in changes.outputs.items()
    }
    for table, writes in changes.writes.items():
        at_ms = changes.write_timestamp_ms[table]
        partition = run.stores[table].partition
        records[partition] = Entries(writes, at_ms)
    return records


async def commit(
    log_: Log,
    application: str,
    writer: str,
    taken: list[Taken],
    before: Callable[[list[Taken]], Awaitable[None]],
    how: tuple[Guarantee, MayWrite] = (EXACTLY_ONCE, always),
) -> Outcome:
    """Commit; tasks that the log refuses are given up and the others tried again. `before` runs before each try."""
    guarantee, may_write = how
    lost: list[TaskRun] = []
    while taken:
        await before(taken)
        try:
            parts = [t.part for t in taken]
            ends = await log_.commit(application, writer, parts, guarantee=guarantee, may_write=may_write)
        except Fenced as error:
            log.warning("%s%s", "" if isinstance(error, RecordsLost) else "fenced: ", error)
            return Outcome((), (*lost, *(t.run for t in taken)), fenced=True)
        except NotOpened as error:  # back under another id, which has not joined yet: what the old one had is lost
            log.warning("not opened: %s", error)
            return Outcome((), (*lost, *(t.run for t in taken)))
        except Refused as error:
            log.warning("refused: %s", error)
            lost += [t.run for t in taken if t.run.scope in error.scopes]
            taken = [t for t in taken if t.run.scope not in error.scopes]
            continue
        except UnfitRecord as error:
            suspects = _suspects(taken, error)
            if len(suspects) > 1:
                parts_of = [[t for t in taken if t not in suspects], *([t] for t in suspects)]
                found = [await commit(log_, application, writer, part, before, how) for part in parts_of]
                return _together(found, lost)
            if not suspects or not _goes_on(suspects[0], error):
                raise
            lost.append(suspects[0].run)
            taken = [t for t in taken if t is not suspects[0]]
            continue
        except OutcomeUnknown as error:
            log.error("a commit was not answered, its tasks are restored: %s", error)
            return Outcome((), (*lost, *(t.run for t in taken)))
        cut = _cut_off(taken, ends)
        done = [t for t in taken if t.run not in cut and _apply(t, ends)]
        return Outcome(tuple(done), (*lost, *(t.run for t in taken if t not in done)))
    return Outcome((), tuple(lost))


def _suspects(taken: Sequence[Taken], error: UnfitRecord) -> list[Taken]:
    """Whose record it is: that of one task, or, where a broker said so, of one of those that write to its partition; each is
    committed alone then, which shows whose."""
    if error.scope is not None:
        return [t for t in taken if t.run.scope == error.scope]
    return [t for t in taken if Partition(*error.partition) in t.part.records]


def _together(found: Sequence[Outcome], lost: Sequence[TaskRun]) -> Outcome:
    done = tuple(one for outcome in found for one in outcome.done)
    all_lost = (*lost, *(run for outcome in found for run in outcome.lost))
    return Outcome(done, all_lost, any(outcome.fenced for outcome in found))


def _goes_on(culprit: Taken, error: UnfitRecord) -> bool:
    """Whether its task may be read again: by then it is known which record is to be left to its policy, or looked for."""
    run, place = culprit.run, Partition(*error.partition)
    table = next((name for name, opened in run.stores.items() if opened.partition == place), None)
    what = Refusal(error.what, place.topic, table)
    if not run.worker.caution.unfit(run.scope, culprit.process, culprit.changes, what):
        return False
    log.warning("%s; its records are read again, and the one that wrote it is left to on_error", error)
    return True


def _cut_off(taken: Sequence[Taken], ends: dict[Partition, int]) -> set[TaskRun]:
    """Tasks whose commit was written before the place where their store stands: its changelog has lost what lies between, in an
    election. The store would take the end of this commit for its place, and a restore would come to another table without a word."""
    cut: set[TaskRun] = set()
    for t in taken:
        if t.run.process is not t.process:
            continue
        for table, writes in t.changes.writes.items():
            opened = t.run.stores[table]
            begin = ends[opened.partition] - len(writes)
            if begin < opened.store.offset:
                what = "%s: its store stands at %d, and %s lost records: what follows was written at %d; it is restored from the log"
                log.warning(what, t.run.id, opened.store.offset, opened.partition, begin)
                cut.add(t.run)
    return cut


def _apply(taken: Taken, ends: dict[Partition, int]) -> bool:
    """Give the stores what the log has; False where one fails. A task that was given up meanwhile has no stores here:
    the next one to open them reads this commit from the changelog."""
    run = taken.run
    if run.process is not taken.process:
        return True
    try:
        for table, writes in taken.changes.writes.items():
            opened = run.stores[table]
            if (epoch := run.worker.log.epoch(opened.partition)) >= 0:
                opened.store.mark(LEADER_EPOCH, str(epoch))
            opened.store.write(writes, ends[opened.partition], gone=taken.changes.gone.get(table, ()))
    except StateError as error:
        level = logging.INFO if isinstance(error, StoreDeleted) else logging.ERROR  # one line for all that were deleted
        log.log(level, "%s: %s; it is restored from the log", run.id, error)
        return False
    taken.process.mark_applied()
    run.committed.update(taken.part.positions)
    return True
