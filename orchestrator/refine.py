"""How the group gets from what is to what should be: the next safe step.

One rule: the identity where nothing differs, and no owner record is written for a task that somebody may still hold.
The wish comes from placement.py; the steps are moves, which wait for a release or a fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import events as ev
from orchestrator import timing
from orchestrator.grants import is_released
from orchestrator.model import Owner, Protocol, TaskId
from orchestrator.placement import place
from orchestrator.placement_view import Plan, View
from orchestrator.staleness import what_holds
from orchestrator.views import build_view

if TYPE_CHECKING:
    from orchestrator.group import Group
    from orchestrator.roster import Member

STALE_TARGETS_MAX = 3  # so often in a row nothing held; then it is computed at once, whatever the pause


@dataclass(slots=True)
class Move:
    """An agreed change of owner that is not yet recorded: to whom, since when, and from whom (for the timing)."""

    target: str
    since_ms: int
    source: str = ""
    asked: bool = False


def _may_plan(group: Group, now_ms: int) -> bool:
    """Not while owners from the time before this coordinator may still come back, nor in a fresh group's delay."""
    if group.fencing or group.gathering:
        return False
    if not group.writers.keys() <= group.roster.writers():
        return False  # until they are back, or fenced: with the first tick after the rejoin grace
    fresh = not group.writers and group.generation == group.inherited
    since = now_ms - (group.first_join_ms if group.first_join_ms is not None else now_ms)
    return not (fresh and since < group.settings.initial_delay_ms)


def rebalance(group: Group, now_ms: int) -> None:
    """Ask where tasks belong, and agree on it. A long assignment is computed aside, one at a time; whatever changes
    meanwhile is looked at when it is there."""
    if group.computing is not None or not _is_time(group, now_ms):
        return
    group.dirty = False
    view = build_view(group)
    if len(view.tasks) + len(view.members) <= group.long_assignment or group.stale_targets >= STALE_TARGETS_MAX:
        _agree(group, view, place(view), now_ms)
    else:
        group.targets_asked += 1
        group.computing = view
        group.effects.append(ev.ComputeTarget(group.targets_asked, view))


def target_computed(group: Group, number: int, plan: Plan, now_ms: int) -> None:
    """Agree on what still holds of a plan that was computed aside; the rest is computed again."""
    asked = group.computing
    if asked is None or number != group.targets_asked:
        return
    group.computing = None
    view = build_view(group)
    holds = what_holds(plan, asked, view) if _is_time(group, now_ms) else None
    group.dirty = group.dirty or holds is not plan
    if holds is None:
        group.stale_targets += 1
    else:
        _agree(group, view, holds, now_ms)


def _is_time(group: Group, now_ms: int) -> bool:
    behind_barrier = group.barrier and bool(group.moves) and not _broken_move(group)
    return not group.paused and not behind_barrier and _may_plan(group, now_ms)


def _agree(group: Group, view: View, plan: Plan, now_ms: int) -> None:
    """Agree on a new assignment if the plan differs from what is agreed; nothing moves here yet."""
    group.stale_targets = 0
    if not group.dirty:  # all of the plan holds
        group.standbys_agreed = group.settings.standbys
    placed = ((task, plan.active[task]) for task in sorted(plan.placed) if task in plan.active)
    changed = {task: target for task, target in placed if view.active.get(task) != target}
    standbys = dict(plan.standbys)
    same_copies = plan.learners == group.learners and standbys == {t: m for t, m in group.standbys.items() if m}
    if not changed and same_copies and not group.membership_changed:
        return
    group.membership_changed = False
    group.generation += 1
    group.learners.become(plan.learners)
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
    for name in group.moves.named():
        target = group.roster.get(name)
        if target is None:
            return True
        if not group.knows_all(target) and any(not group.can_run(target, task) for task in group.moves.of(name)):
            return True
    return False


def call_off(group: Group, target: Member) -> None:
    """What the target had ready is gone with its incarnation: owners that were asked keep their tasks, and no standby
    comes beside them. Behind a barrier nothing was ready, and the move may as well go to the next incarnation."""
    if group.barrier:
        return
    for task in list(group.moves.of(target.name)):
        del group.moves[task]
        keeper = group.instance_of(group.effective_owner(task) or "")
        group.standbys[task] = tuple(m for m in group.standbys.get(task, ()) if group.instance_of(m) != keeper)


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
            timing.begin(group, record)
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
        if target is None or target.fenced or not group.can_run(target, task):
            del group.moves[task]
            group.dirty = True
            continue
        epoch = owner.epoch + 1 if owner is not None else 1
        free.append(Owner(task, epoch, target.name, target.hello.writer, group.term))
    return free


def retire(group: Group) -> None:
    """Tasks that no version has any more: once their owner has let go, the log says that nobody may write for them."""
    gone = [
        Owner(task, owner.epoch + 1, owner.member, "", group.term)
        for task in sorted(group.retiring.keys() - group.recording.keys())
        if (owner := group.owners[task]).writer and _proven(group, owner)
    ]
    if gone:
        for record in gone:
            group.recording[record.task] = record
            del group.retiring[record.task]
        group.effects.append(ev.RecordOwners(tuple(gone)))


def _proven(group: Group, owner: Owner) -> bool:
    """Whether the owner gave the task up: by its own report."""
    member = group.roster.get(owner.member)
    return member is not None and member.hello.writer == owner.writer and is_released(owner, member)
