"""How the group gets from what is to what should be: the next safe step.

One rule: the identity where nothing differs, and no owner record is written for a task that somebody may still hold.
The wish comes from placement.py; the steps are moves, which wait for a release or a fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import events as ev
from orchestrator import group_timing
from orchestrator.grants import is_released
from orchestrator.model import Owner, Protocol, TaskId
from orchestrator.placement import place
from orchestrator.placement_view import Plan
from orchestrator.views import build_view

if TYPE_CHECKING:
    from orchestrator.group import Group


@dataclass(slots=True)
class Move:
    """An agreed change of owner that is not yet recorded: to whom, since when, and from whom (for the timing)."""

    target: str
    since_ms: int
    source: str = ""
    asked: bool = False


def _may_plan(group: Group, now_ms: int) -> bool:
    """Not while owners from the time before this coordinator may still come back, nor in a fresh group's delay."""
    if group.fencing:
        return False
    young = now_ms - group.started_ms < group.settings.rejoin_grace_ms
    if young and any(group.roster.of_writer(writer) is None for writer in group.writers):
        return False
    fresh = not group.writers and group.generation == 0
    since = now_ms - (group.first_join_ms if group.first_join_ms is not None else now_ms)
    return not (fresh and since < group.settings.initial_delay_ms)


def rebalance(group: Group, now_ms: int) -> None:
    """Agree on a new assignment if the plan differs from what is agreed; nothing moves here yet."""
    if group.paused or not _may_plan(group, now_ms) or (group.barrier and group.moves and not _broken_move(group)):
        return
    group.dirty = False
    plan = place(build_view(group))
    changed = _changes(group, plan)
    learners = {t: m for t, m in plan.learners.items() if t in group.tasks}
    standbys = dict(plan.standbys)
    same_copies = learners == group.learners and standbys == {t: m for t, m in group.standbys.items() if m}
    if not changed and same_copies and not group.membership_changed:
        return
    group.membership_changed = False
    group.generation += 1
    group.learners.become(learners)
    group.standbys.become(standbys)
    protocol = group.protocol
    if changed and protocol is Protocol.EAGER:
        changed = dict(plan.active)
    for task, target in changed.items():
        owner = group.owners.get(task)
        source = owner.member if owner and owner.writer else ""
        before = group.moves.get(task)
        since = before.since_ms if before else now_ms
        group.moves[task] = Move(target, since, source, bool(source))
    group.barrier = protocol is not Protocol.LEARNER and bool(group.moves)


def _broken_move(group: Group) -> bool:
    return any(group.roster.get(name) is None for name in group.moves.named())


def _changes(group: Group, plan: Plan) -> dict[TaskId, str]:
    """Tasks whose agreed owner differs from the plan's."""
    return {task: target for task, target in plan.active.items() if group.effective_owner(task) != target}


def advance(group: Group) -> None:
    """Record the owners of moves that are free: nobody holds the task, provably."""
    free = _free(group, sorted(_stirred(group)))
    if group.barrier:
        # All at once or none. What became free is only counted until it may be all of them; then all are looked at.
        group.freed.update(record.task for record in free)
        if len(group.freed) < len(group.moves):
            return
        free = _free(group, sorted(group.moves))
        group.freed = {record.task for record in free}
        if len(free) < len(group.moves):
            return
    if free:
        if group.barrier and group.protocol is Protocol.COOPERATIVE and any(group.moves[o.task].source for o in free):
            group.generation += 1
        group.barrier = False
        group.freed.clear()
        for record in free:
            group_timing.begin(group, record)
            group.recording[record.task] = record
            del group.moves[record.task]
        group.effects.append(ev.RecordOwners(tuple(free)))


def _stirred(group: Group) -> set[TaskId]:
    """Moves of which something changed: from or to a touched member."""
    if not group.moves:
        return set()
    found: set[TaskId] = set()
    for name in group.touched:
        found.update(group.moves.of(name))
        found.update(task for task in group.owners.of(name) if task in group.moves)
    return found


def _free(group: Group, tasks: Iterable[TaskId]) -> list[Owner]:
    """The records of those moves that can be made now; a move that has become pointless is dropped."""
    free: list[Owner] = []
    for task in tasks:
        move = group.moves[task]
        owner = group.owners.get(task)
        if task in group.recording or (owner is not None and owner.writer in group.fencing):
            continue
        if owner is not None and owner.writer and not _proven(group, owner):
            if move.target == owner.member and not group.barrier:
                del group.moves[task]
            continue
        target = group.roster.get(move.target)
        if target is None or target.fenced:
            del group.moves[task]
            group.dirty = True
            continue
        epoch = owner.epoch + 1 if owner is not None else 1
        free.append(Owner(task, epoch, target.name, target.hello.writer, group.term))
    return free


def _proven(group: Group, owner: Owner) -> bool:
    """Whether the owner gave the task up: by its own report."""
    member = group.roster.get(owner.member)
    return member is not None and member.hello.writer == owner.writer and is_released(owner, member)
