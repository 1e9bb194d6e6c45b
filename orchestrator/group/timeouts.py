"""What time alone does to a group: silent members, late releases, stuck learners.

One rule: a connection that ends is not death; a member whose tasks are moved is fenced first. Called by step.py with each Tick.
"""

from __future__ import annotations

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import fencing, takeovers
from orchestrator.group.assignments import waits_for_hand_over
from orchestrator.group.assignor_view import can_go_on_elsewhere, has_warm_standby
from orchestrator.group.convergence import holder_of
from orchestrator.group.members import Member, is_released
from orchestrator.group.state import GroupState, Phase
from orchestrator.model import TaskId

# A coordinator at work steps at least so often. That much of a gap counts: one that is slow for good still replaces members that are gone.
STEPS_EVERY_MS = 500
STOOD_STILL_MS = 750  # a gap between two steps that one at work does not leave


def watch(group: GroupState, now_ms: int) -> ch.Decisions:
    """Act on everything that is due now."""
    yield from _watch_members(group, now_ms)
    yield from _watch_releases(group, now_ms)
    if now_ms - group.started_ms >= group.settings.rejoin_grace_ms:
        yield from _fence_absent(group)
    elif group.former and now_ms - group.started_ms >= group.settings.disconnect_grace_ms:
        yield from takeovers.fence_former(group)
    yield from takeovers.take_over(group, now_ms)
    forget = [p for p, since in group.given_up.items() if now_ms - since >= 5 * group.settings.learner_timeout_ms]
    for task, instance in forget:
        yield ch.GivenUpForgotten(task, instance)


def is_calm(group: GroupState, now_ms: int) -> bool:
    """Whether nothing becomes due before the next heartbeats: all members report, and nothing is under way."""
    under_way = group.moves or group.learners or group.retiring or group.operations or group.fencing or group.given_up
    if under_way or group.gathering or group.phase is not Phase.STABLE:
        return False
    late_ms = group.settings.heartbeat_ms * 3 // 2
    return all(member.session is not None and member.silent_for(now_ms) < late_ms for member in group.members)


def pause_before(group: GroupState, now_ms: int) -> int:
    """How long the coordinator itself stood still, in ms (a Tick comes at least twice a second): it could not receive from
    its members, so that time does not count as their silence. Members are replaced after three heartbeats, or the grace, of which
    one may have passed before it stood still."""
    gap_ms = now_ms - group.last_step_ms
    return gap_ms - STEPS_EVERY_MS if gap_ms > max(STOOD_STILL_MS, group.settings.heartbeat_ms) else 0


def _watch_members(group: GroupState, now_ms: int) -> ch.Decisions:
    settings = group.settings
    learning = set(group.learners.named())
    for member in list(group.members):
        # Nearly all reported lately and learn nothing, and this is asked of thousands several times a second.
        since = member.last_report_ms if member.silent_ms is None else member.silent_ms
        patience = replaced_after_ms(group, member)
        if 0 <= now_ms - since < min(patience, settings.session_timeout_ms) and member.name not in learning:
            continue
        silent = member.silent_for(now_ms)
        if silent >= settings.session_timeout_ms:
            yield from fencing.expire(group, member)
            continue
        if silent >= patience and replaceable(group, member):
            yield ev.Announced(f"{member.name} fenced")
            yield from fencing.fence(group, member.join_request.writer)
        yield from _give_up_learners(group, member, now_ms)


def silent_writers(group: GroupState, now_ms: int) -> list[str]:
    """Transactional ids that hold tasks, of members which have been silent for as long as one that can be replaced is waited for: these
    may be waited for longer, for their disk, but not what they have left open in the log."""
    return [
        member.join_request.writer
        for member in group.members
        if not member.fenced
        and member.silent_for(now_ms) >= replaced_after_ms(group, member)
        and group.by_transactional_id.of(member.join_request.writer)
    ]


def replaced_after_ms(group: GroupState, member: Member) -> int:
    """How long a silent member that is `replaceable` is waited for: the grace of a connection that ended. A process that stands
    still keeps its connection: three heartbeats that do not come are as good."""
    settings = group.settings
    if member.session is None:
        return settings.disconnect_grace_ms
    return max(settings.disconnect_grace_ms, settings.three_heartbeats_ms)


def replaceable(group: GroupState, member: Member) -> bool:
    """It announced no bounce, and a task of it could go on elsewhere at once. While its connection stands that takes a standby:
    a learner has its own time, the release timeout."""
    if member.fenced or member.comes_back:
        return False
    goes_on = can_go_on_elsewhere if member.session is None else has_warm_standby
    return goes_on(group, member.join_request.writer, member.join_request.instance)


def _watch_releases(group: GroupState, now_ms: int) -> ch.Decisions:
    """An owner that does not answer a release within the timeout, and is silent, is fenced as a whole. One that sends its
    heartbeats is in a call: it releases the task when that has ended. An owner that has given its tasks up and waits
    behind a barrier for others has answered."""
    overdue = now_ms - group.settings.release_timeout_ms
    for task, move in list(group.moves.items()):
        # A fence calls moves off: a member whose release is no longer awaited is not fenced for it.
        if move.asked and move.since_ms <= overdue and task in group.moves:
            yield from _fence_holder(group, task, now_ms)
    for task, since_ms in group.retiring.items():
        if since_ms <= overdue:
            yield from _fence_holder(group, task, now_ms)


def _fence_holder(group: GroupState, task: TaskId, now_ms: int) -> ch.Decisions:
    """Fence the silent owner that still has the task, and has not proven that it gave it up. One that speaks is in a call:
    a round in which all moves wait for each other goes on without the task."""
    holder = holder_of(group, task)
    if holder is None:
        return
    if holder.silent_for(now_ms) < _patience_ms(group, holder):
        speaks = holder.session is not None
        if (
            speaks
            and group.barrier
            and task in group.moves
            and not holder.fenced
            and not is_released(group.owners[task], holder)
        ):
            yield ch.MovePostponed(task, now_ms)
        return
    if not holder.fenced and not is_released(group.owners[task], holder):
        yield ev.Announced(f"{holder.name} fenced")
        yield from fencing.fence(group, holder.join_request.writer)


def _patience_ms(group: GroupState, holder: Member) -> int:
    """Three heartbeats that did not come are silence, and so is an ended connection after its grace."""
    settings = group.settings
    return settings.patience_ms if holder.session is None else settings.three_heartbeats_ms


def _fence_absent(group: GroupState) -> ch.Decisions:
    """Owners named in the log that did not come back to this coordinator within the grace."""
    here = group.members.transactional_ids()
    if group.by_transactional_id.keys() <= here:
        return  # nearly always, and asked with each tick
    absent = [w for w in group.by_transactional_id if w not in here and w not in group.fencing]
    for transactional_id in absent:
        task = next(iter(group.by_transactional_id.of(transactional_id)))
        yield ev.Announced(f"{group.owners[task].member} fenced")
        yield from fencing.fence(group, transactional_id)


def _give_up_learners(group: GroupState, member: Member, now_ms: int) -> ch.Decisions:
    """A learner without progress is placed elsewhere: a scale-down must not wait forever."""
    if member.session is None:
        return
    learning = [task for task in group.learners.of(member.name) if not waits_for_hand_over(group, task)]
    if unreported := tuple(task for task in learning if task not in member.progress):
        yield ch.LearnerAwaited(member, unreported, now_ms)
    for task in member.stuck(learning, now_ms, group.settings.learner_timeout_ms):
        yield ch.LearnerGivenUp(member, task, now_ms)
        yield ev.Announced(f"{member.name} gave up learning {task}", {"task": str(task)})
