"""A scale-down in the group: instances are marked, hand everything over, and are sent their shutdown.

One rule: several run beside each other, and an instance leaves while one of them names it. A mark can be taken back as
long as its instance has not been sent its shutdown; a member that is stopped by force is fenced. A leaver that was silent
for so long that the scale-down ended without it leaves when it comes back. Called by step.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group import fencing
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState, Operation
from orchestrator.names import natural


class ScaleDowns(NamedTuple):
    """As a log keeps them: those that `run`, as written down, and the last incarnation of each instance that left by one that is over."""

    run: Sequence[Mapping[str, object]] = ()
    leavers: Mapping[str, str] = {}


def mark(group: GroupState, event: ev.Leaving) -> ch.Decisions:
    """Mark instances as leaving. Others that leave already go on."""
    leavers = frozenset(event.instances)
    operation = Operation(event.operation, leavers, event.deadline_ms, event.force, event.resumed)
    yield ch.OperationBegun(operation, {**event.incarnations, **incarnations(group, leavers)})
    for member in group.members:
        if member.join_request.instance in leavers and not member.leaving:
            yield ch.LeavingMarked(member, True)


def incarnations(group: GroupState, instances: Collection[str]) -> Mapping[str, str]:
    """Which processes those of the instances are that have members: one that is started again is another, and stays."""
    return {
        member.join_request.instance: member.join_request.instance_incarnation
        for member in group.members
        if member.join_request.instance in instances
    }


def undo(group: GroupState) -> ch.Decisions:
    """Take all scale-downs that run back."""
    for operation in [*group.operations.values()]:
        yield from _take_back(group, operation)


def _take_back(group: GroupState, operation: Operation) -> ch.Decisions:
    """Take the marks of one back; who is to leave by another one leaves all the same."""
    others = (other.instances for other in group.operations.values() if other is not operation)
    back = operation.instances.difference(*others)
    for member in group.members:
        if member.join_request.instance in back and member.leaving and not member.shut_down:
            yield ch.LeavingMarked(member, False)
    yield ch.Touched(set(group.members.by_name))
    yield ev.OperationEnded(operation.id, "rolled back")
    yield ch.OperationOver(operation.id, taken_back=back)
    yield ch.TargetOutdated()


def force(group: GroupState, operation: Operation, now_ms: int) -> ch.Decisions:
    """The deadline has passed: the leavers are stopped as they are. A fenced worker comes back under a new transactional id, to
    be sent its shutdown."""
    for member in list(group.members):
        if member.join_request.instance in operation.instances:
            yield from fencing.expire(group, member)
    yield ev.OperationEnded(operation.id, "forced")
    yield ch.OperationOver(
        operation.id, dict.fromkeys(operation.instances, now_ms + 3 * group.settings.session_timeout_ms)
    )


def check_deadline(group: GroupState, operation: Operation, now_ms: int) -> ch.Decisions:
    """A deadline that has passed takes the marks back, or stops the leavers by force."""
    if operation.deadline_ms is None or now_ms < operation.deadline_ms:
        return
    if operation.force:
        yield from force(group, operation, now_ms)
    else:
        yield from _take_back(group, operation)


def finish(going: list[Member]) -> ch.Decisions:
    """Members that were sent their shutdown are shut down."""
    for member in sorted(going, key=lambda m: natural(m.name)):
        if not member.shut_down:
            yield ch.MemberShutDown(member)
            yield ev.Announced(f"{member.name} shuts down")


def end(group: GroupState, operation: Operation, now_ms: int) -> ch.Decisions:
    """The operation is done when none of its instances is left."""
    if any(group.members.of_instance(instance) for instance in operation.instances):
        return
    absent = not group.by_transactional_id.keys() <= group.members.transactional_ids()
    if operation.resumed and (absent or now_ms - group.started_ms < group.settings.rejoin_grace_ms):
        return  # its leavers may still come back to this coordinator, or run on until they are fenced
    yield ev.OperationEnded(operation.id, "done")
    yield ch.OperationOver(operation.id)
