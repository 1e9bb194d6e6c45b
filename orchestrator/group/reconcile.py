"""How the group gets from what is to what should be: the next safe step.

One rule: the identity where nothing differs, and no owner record is written for a task that a member may still hold.
The target assignment comes from task_assignor/assign.py; the steps are moves, which wait for a release or a fence.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import hand_overs
from orchestrator.group.assignor_view import build_view
from orchestrator.group.members import Member, is_released
from orchestrator.group.state import GroupState, Move, Phase
from orchestrator.model import Owner, Protocol, TaskId
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.staleness import still_valid
from orchestrator.task_assignor.view import TargetAssignment, View

STALE_TARGETS_MAX = 3  # so often in a row nothing held; then it is computed at once, whatever the pause


def rebalance(group: GroupState, now_ms: int) -> ch.Decisions:
    """Ask where tasks belong, and agree on it. A long assignment is computed by the assignor process, one at a time; whatever changes
    meanwhile is looked at when it is there."""
    view = build_view(group)
    if len(view.tasks) + len(view.members) <= group.long_assignment or group.stale_targets >= STALE_TARGETS_MAX:
        yield ch.TargetRequested(None)
        yield from reconcile(group, view, assign_tasks(view), now_ms)
    else:
        yield ch.TargetRequested(view)
        yield ev.ComputeTarget(group.targets_asked, view)


def target_computed(group: GroupState, number: int, target: TargetAssignment, now_ms: int) -> ch.Decisions:
    """Agree on what still holds of a target assignment that was computed by the assignor process; the rest is computed again."""
    asked = group.computing
    if asked is None or number != group.targets_asked:
        return
    view = build_view(group)
    holds = still_valid(target, asked, view) if group.phase is Phase.COMPUTING else None
    yield ch.TargetReceived(stale=holds is None, outdated=holds is not target)
    if holds is not None:
        yield from reconcile(group, view, holds, now_ms)


def reconcile(group: GroupState, view: View, target: TargetAssignment, now_ms: int) -> list[ch.Change]:
    """Returns the changes by which the group agrees on a target assignment; none but a note where nothing differs from
    what is agreed. `view` is the group as it is. Nothing is changed here, and no task changes hands with these changes."""
    changes: list[ch.Change] = [ch.TargetUsed(None if group.dirty else group.settings.standbys)]
    reassigned = ((task, target.active[task]) for task in sorted(target.reassigned) if task in target.active)
    changed = {task: member for task, member in reassigned if view.active.get(task) != member}
    postponed = [task for task in changed if _is_postponed(group, task)]
    changed = {task: member for task, member in changed.items() if task not in postponed}
    standbys = dict(target.standbys)
    for task in postponed:  # they were planned for when its owner has let go, which it has not
        if apart := _apart_from_owner(group, task, standbys.pop(task, ())):
            standbys[task] = apart
    same_copies = target.learners == group.learners and standbys == {t: m for t, m in group.standbys.items() if m}
    if not changed and same_copies and not group.membership_changed:
        return changes
    if changed and group.protocol is Protocol.EAGER:
        changed = {task: member for task, member in target.active.items() if not _is_postponed(group, task)}
    moves = {task: _move(group, task, member, now_ms) for task, member in changed.items()}
    barrier = group.protocol is not Protocol.LEARNER and bool(moves or group.moves)
    return [*changes, ch.TargetAgreed(target.learners, standbys, moves, barrier)]


def _move(group: GroupState, task: TaskId, target: str, now_ms: int) -> Move:
    """The move of a task to the member `target`; one that is agreed already keeps its time."""
    owner, before = group.owners.get(task), group.moves.get(task)
    source = owner.member if owner is not None and owner.writer else ""
    return Move(target, before.since_ms if before else now_ms, source, bool(source))


def _is_postponed(group: GroupState, task: TaskId) -> bool:
    """Whether its owner was too late for a round and has not let go yet."""
    return task in group.postponed and (owner := group.owners.get(task)) is not None and not _proven(group, owner)


def call_off(group: GroupState, target: Member) -> ch.Decisions:
    """What the target had ready is gone with its incarnation: owners that were asked keep their tasks, and no standby
    comes beside them. Behind a barrier nothing was ready, and the move may as well go to the next incarnation."""
    if group.barrier:
        return
    for task in list(group.moves.of(target.name)):
        yield ch.MoveDropped(task)
        yield ch.StandbysSet(task, _apart_from_owner(group, task, group.standbys.get(task, ())))


def _apart_from_owner(group: GroupState, task: TaskId, standbys: Iterable[str]) -> tuple[str, ...]:
    """Those in other instances than its owner's."""
    keeper = group.instance_of(group.effective_owner(task) or "")
    return tuple(member for member in standbys if group.instance_of(member) != keeper)


def advance(group: GroupState) -> ch.Decisions:
    """Records the owners of moves that are free: no member holds the task, provably."""
    free = yield from _free(group, sorted(_affected(group)))
    if group.barrier and group.protocol is Protocol.COOPERATIVE:
        # Its first phase hands out what has no owner; only what has to be given up first waits for the second (KIP-429).
        unowned = _unowned(group, free)
        if unowned:
            yield from _begin(group, unowned, group.generation, len(unowned) < len(group.moves))
            free = [record for record in free if record.task in group.moves]
    if group.barrier:
        # All at once or none. What became free is only counted until it may be all of them; then all are looked at.
        yield ch.MovesReleasable({record.task for record in free})
        if len(group.releasable) < len(group.moves):
            return
        free = yield from _free(group, sorted(group.moves))
        yield ch.MovesReleasable({record.task for record in free}, instead=True)
        if len(free) < len(group.moves):
            return
    if free:
        moved = any(group.moves[o.task].source for o in free)
        second = group.barrier and group.protocol is Protocol.COOPERATIVE and moved
        yield from _begin(group, free, group.generation + second, False)


def _unowned(group: GroupState, free: list[Owner]) -> list[Owner]:
    """The records of tasks without an owner."""
    owners = ((record, group.owners.get(record.task)) for record in free)
    return [record for record, owner in owners if owner is None or not owner.writer]


def _begin(group: GroupState, records: list[Owner], generation: int, barrier: bool) -> ch.Decisions:
    yield ch.MovesBegun(tuple(records), hand_overs.begun(group, records), generation, barrier)
    yield ev.RecordOwners(tuple(records))


def _affected(group: GroupState) -> set[TaskId]:
    """Moves from or to a touched member."""
    if not group.moves:
        return set()
    if group.broadcast_inputs[:1] != (group.protocol,):
        return set(group.moves)  # other moves may be made now
    found: set[TaskId] = set()
    for name in group.touched:
        found.update(group.moves.of(name))
        found.update(task for task in group.owners.of(name) if task in group.moves)
    return found


def _free(group: GroupState, tasks: Iterable[TaskId]) -> Generator[ch.Decision, None, list[Owner]]:
    """Returns the records of those moves that can be made now; a move that has become pointless is dropped."""
    free: list[Owner] = []
    for task in tasks:
        move = group.moves[task]
        owner = group.owners.get(task)
        if task in group.recording or (owner is not None and owner.writer in group.fencing):
            continue
        if owner is not None and owner.writer and not _proven(group, owner):
            if move.target == owner.member and not group.barrier:
                yield ch.MoveDropped(task)
            continue
        target = group.members.get(move.target)
        if target is None or target.fenced or not group.can_run(target, task):
            yield ch.MoveDropped(task)
            yield ch.TargetOutdated()
            continue
        epoch = owner.epoch + 1 if owner is not None else 1
        free.append(Owner(task, epoch, target.name, target.join_request.writer, group.term))
    return free


def retire(group: GroupState) -> ch.Decisions:
    """Tasks that no version has any more: once their owner has released them, their owner record names no transactional id."""
    gone = [
        owner.without_writer(group.term)
        for task in sorted(group.retiring.keys() - group.recording.keys())
        if (owner := group.owners[task]).writer and _proven(group, owner)
    ]
    if gone:
        yield ch.RetirementsBegun(tuple(gone))
        yield ev.RecordOwners(tuple(gone))


def _proven(group: GroupState, owner: Owner) -> bool:
    """Whether the owner gave the task up: by its own report."""
    member = group.members.get(owner.member)
    return member is not None and member.join_request.writer == owner.writer and is_released(owner, member)
