"""What time alone does to a group: silent members, late releases, stuck learners.

One rule: a connection that ends is not death; whoever is acted upon is fenced first. Called by Group with each Tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import events as ev
from orchestrator.grants import is_released
from orchestrator.model import TaskId
from orchestrator.roster import Member
from orchestrator.stability import holder_of
from orchestrator.views import can_go_on_elsewhere

if TYPE_CHECKING:
    from orchestrator.group import Group


def watch(group: Group, now_ms: int) -> None:
    """Act on everything that is due now."""
    _watch_members(group, now_ms)
    _watch_releases(group, now_ms)
    if now_ms - group.started_ms >= group.settings.rejoin_grace_ms:
        _fence_absent(group)
    forget = [p for p, since in group.given_up.items() if now_ms - since >= 5 * group.settings.learner_timeout_ms]
    for pair in forget:
        del group.given_up[pair]
        group.dirty = True


def excuse(group: Group, gap_ms: int) -> None:
    """The coordinator itself stood still (a Tick comes several times a second): its members could not be heard, so
    that time does not count as their silence."""
    for member in group.roster:
        member.heard_ms += gap_ms
        if member.silent_ms is not None:
            member.silent_ms += gap_ms
        member.progress = {task: (position, since + gap_ms) for task, (position, since) in member.progress.items()}
    for move in group.moves.values():
        move.since_ms += gap_ms
    group.retiring = {task: since_ms + gap_ms for task, since_ms in group.retiring.items()}
    group.coming = {task: since_ms + gap_ms for task, since_ms in group.coming.items()}


def _watch_members(group: Group, now_ms: int) -> None:
    settings = group.settings
    learning = set(group.learners.named())
    soon = min(settings.session_timeout_ms, settings.disconnect_grace_ms)
    for member in list(group.roster):
        # Nearly all were heard lately and learn nothing, and this is asked of thousands several times a second.
        since = member.heard_ms if member.silent_ms is None else member.silent_ms
        patience = soon if member.session is None else settings.session_timeout_ms
        if 0 <= now_ms - since < patience and member.name not in learning:
            continue
        silent = member.silent_for(now_ms)
        if silent >= settings.session_timeout_ms:
            group.expire(member)
            continue
        if silent >= settings.disconnect_grace_ms and _replaceable(group, member):
            group.effects.append(ev.Said(f"{member.name} fenced"))
            group.fence_writer(member.hello.writer)
        _give_up_learners(group, member, now_ms)


def _replaceable(group: Group, member: Member) -> bool:
    """Its connection ended without a bounce announced, and a task of it has a warm copy elsewhere."""
    if member.session is not None or member.fenced or member.status.bounce:
        return False
    return can_go_on_elsewhere(group, member)


def _watch_releases(group: Group, now_ms: int) -> None:
    """An owner that does not answer a release within the timeout is fenced as a whole; who has given its tasks up and
    waits behind a barrier for others has answered."""
    overdue = now_ms - group.settings.release_timeout_ms
    for task, move in list(group.moves.items()):
        # A fence calls moves off: whose release nobody waits for any more is not fenced for it.
        if move.asked and move.since_ms <= overdue and task in group.moves:
            _fence_holder(group, task)
    for task, since_ms in group.retiring.items():
        if since_ms <= overdue:
            _fence_holder(group, task)


def _fence_holder(group: Group, task: TaskId) -> None:
    """Fence the owner that still has the task, and has not proven that it gave it up."""
    holder = holder_of(group, task)
    if holder is not None and not holder.fenced and not is_released(group.owners[task], holder):
        group.effects.append(ev.Said(f"{holder.name} fenced"))
        group.fence_writer(holder.hello.writer)


def _fence_absent(group: Group) -> None:
    """Owners named in the log that did not come back to this coordinator within the grace."""
    here = group.roster.writers()
    if group.writers.keys() <= here:
        return  # nearly always, and asked with each tick
    absent = [w for w in group.writers if w not in here and w not in group.fencing]
    for writer in absent:
        task = next(iter(group.writers.of(writer)))
        group.effects.append(ev.Said(f"{group.owners[task].member} fenced"))
        group.fence_writer(writer)


def _give_up_learners(group: Group, member: Member, now_ms: int) -> None:
    """A learner without progress is placed elsewhere: a scale-down must not wait forever."""
    if member.session is None:
        return
    learning = list(group.learners.of(member.name))
    for task in group.roster.stuck_learners(member, learning, now_ms, group.settings):
        group.given_up[(task, member.hello.instance)] = now_ms
        del group.learners[task]
        member.progress.pop(task, None)
        group.effects.append(ev.Said(f"{member.name} gave up learning {task}", {"task": str(task)}))
        group.dirty = True
