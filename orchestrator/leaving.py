"""A scale-down in the group: instances are marked, hand everything over, and are told that they may go.

One rule: a mark can be taken back as long as its instance has not been told to go; whoever is stopped by force is fenced.
Called by group.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import events as ev
from orchestrator.names import natural
from orchestrator.roster import Member

if TYPE_CHECKING:
    from orchestrator.group import Group


@dataclass(slots=True)
class Operation:
    """A running scale-down; its record in the log survives the coordinator."""

    id: str
    instances: frozenset[str]
    deadline_ms: int | None
    force: bool
    resumed: bool = False


def mark(group: Group, event: ev.Leaving) -> None:
    """Mark instances as leaving."""
    group.operation = Operation(
        event.operation, frozenset(event.instances), event.deadline_ms, event.force, event.resumed
    )
    for member in group.roster:
        member.leaving = member.hello.instance in group.operation.instances
    group.touched.update(group.roster.members)
    group.dirty = True


def undo(group: Group, outcome: str) -> None:
    """Take the marks of the running scale-down back."""
    if group.operation is None:
        return
    for member in group.roster:
        if not member.shut_down:
            member.leaving = False
    group.touched.update(group.roster.members)
    group.effects.append(ev.OperationEnded(group.operation.id, outcome))
    group.operation = None
    group.dirty = True


def force(group: Group, now_ms: int) -> None:
    """The deadline has passed: the leavers are stopped as they are. A fenced worker comes back under a new writer id, to
    be told that it may go."""
    assert group.operation is not None
    until = now_ms + 3 * group.settings.session_timeout_ms
    group.dismissed |= dict.fromkeys(group.operation.instances, until)
    for member in list(group.roster):
        if member.hello.instance in group.operation.instances:
            group.expire(member)
    group.effects.append(ev.OperationEnded(group.operation.id, "forced"))
    group.operation = None


def check_deadline(group: Group, now_ms: int) -> None:
    """A deadline that has passed takes the marks back, or stops the leavers by force."""
    operation = group.operation
    if operation is None or operation.deadline_ms is None or now_ms < operation.deadline_ms:
        return
    if operation.force:
        force(group, now_ms)
    else:
        undo(group, "rolled back")


def finish(group: Group, going: list[Member]) -> None:
    """Who was told to go does."""
    for member in sorted(going, key=lambda m: natural(m.name)):
        if not member.shut_down:
            member.shut_down = True
            group.effects.append(ev.Said(f"{member.name} shuts down"))


def end(group: Group, now_ms: int) -> None:
    """The operation is done when nobody of it is left."""
    operation = group.operation
    if operation is None or any(group.roster.of_instance(instance) for instance in operation.instances):
        return
    absent = not group.writers.keys() <= group.roster.writers()
    if operation.resumed and (absent or now_ms - group.started_ms < group.settings.rejoin_grace_ms):
        return  # its leavers may still come back to this coordinator, or run on until they are fenced
    group.effects.append(ev.OperationEnded(operation.id, "done"))
    group.operation = None
