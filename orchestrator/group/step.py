"""The group: which member may run which task, decided safely. `Group.step(event, now_ms) -> list[Effect]`.

One rule: a task is granted only after its owner record is in the log, and an owner record changes only after the
owner before it proved its release or was fenced (safety rules 1 to 4). The modules of this room decide and change
nothing: they yield changes, which are applied here one by one, and effects. Where tasks belong is task_assignor/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import fencing, membership, partition_growth, scale_down
from orchestrator.group.apply import apply
from orchestrator.group.assignments import send_assignments
from orchestrator.group.assignor_view import restoring
from orchestrator.group.phases import turn_of
from orchestrator.group.reconcile import advance, rebalance, retire, target_computed
from orchestrator.group.state import GroupState, Phase
from orchestrator.group.timeouts import pause_before, watch
from orchestrator.model import Settings, Task, TaskId


class Group(GroupState):
    """The state, and what each event does to it."""

    def step(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Take one event; return what is to be done. Never waits, reads no clock."""
        effects: list[ev.Effect] = []
        apply(ch.Stepped(now_ms, pause_before(self, now_ms)), self)
        for decision in _decide(self, event, now_ms):
            if isinstance(decision, ch.Change):
                apply(decision, self)
            else:
                effects.append(decision)
        return effects

    def _change(self, *changes: ch.Change) -> None:
        for change in changes:
            apply(change, self)
        apply(ch.Turned(turn_of(self, self.last_step_ms)), self)

    def accept_as_is(self) -> None:
        """Takes the present state as agreed: no rebalance before the next change."""
        self._change(ch.AcceptedAsIs())

    def accept_standbys(self, standbys: Mapping[TaskId, tuple[str, ...]]) -> None:
        """Take standbys that are there already as agreed."""
        self._change(*(ch.StandbysSet(task, members) for task, members in standbys.items()))

    def reconsider(self, settings: Settings | None = None, declared: Mapping[TaskId, Task] | None = None) -> None:
        """Settings or tasks changed: compute a target assignment with the next step. Learners that run are finished,
        whatever the budget is now."""
        self._change(ch.Reconfigured(restoring(self), settings, declared))

    def hold(self, on: bool) -> None:
        """Compute no target assignment until the hold is over."""
        self._change(ch.HoldSet(on))


def _decide(group: GroupState, event: ev.Event, now_ms: int) -> ch.Decisions:
    """Everything that follows from an event; each change is applied before the next decision is made."""
    yield from _answer(group, event, now_ms)
    for operation in [*group.operations.values()]:
        yield from scale_down.check_deadline(group, operation, now_ms)
    # A heartbeat that changes nothing turns nothing: there are thousands a second.
    turns = group.dirty or bool(group.touched) or isinstance(event, ev.TargetComputed)
    if group.dirty:
        yield from partition_growth.see_tasks(group)
        yield from retire(group)
        yield ch.Turned(turn_of(group, now_ms))
        if group.phase is Phase.PLANNING:
            yield from rebalance(group, now_ms)
    if group.touched:
        yield from advance(group)
        going = yield from send_assignments(group)
        yield from scale_down.finish(going)
    for operation in [*group.operations.values()]:
        yield from scale_down.end(group, operation, now_ms)
    if turns:
        yield ch.Turned(turn_of(group, now_ms))


def _answer(group: GroupState, event: ev.Event, now_ms: int) -> Iterable[ch.Decision]:
    """What follows at once from the event itself."""
    match event:
        case ev.Heartbeat():
            return membership.heartbeat(group, event, now_ms)
        case ev.Tick():
            return chain(watch(group, now_ms), partition_growth.watch(group, now_ms))
        case ev.Joined():
            return membership.joined(group, event, now_ms)
        case ev.SessionEnded():
            return membership.session_ended(group, event, now_ms)
        case ev.OwnersRecorded(records):
            return fencing.recorded(group, records)
        case ev.Fenced(transactional_id, tasks):
            return [ch.FenceConfirmed(transactional_id, tasks)]
        case ev.Expired(name):
            return fencing.expire_named(group, name)
        case ev.Leaving():
            return scale_down.mark(group, event)
        case ev.UndoLeaving():
            return scale_down.undo(group)
        case ev.TargetComputed(number, target):
            return target_computed(group, number, target, now_ms)
        case ev.Gathered():
            return [ch.Gathered()]
