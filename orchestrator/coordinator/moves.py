"""Why tasks change hands, in a few words for the record of it: seen when the new owner is written down.

One rule: it says what the group knew at that moment, and decides nothing. Pure; the reasons why a task is where it is now are
in orchestrator/explain/.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.group.state import GroupState
from orchestrator.model import Owner, TaskId


def reasons(group: GroupState, records: Iterable[Owner]) -> dict[tuple[TaskId, int], str]:
    """Returns why each of these tasks changes hands, by task and epoch; tasks without an owner before are left out."""
    found: dict[tuple[TaskId, int], str] = {}
    for record in records:
        move = group.hand_overs.get(record.task)
        if move is not None and record.writer and move.target == record.member:
            found[record.task, record.epoch] = _reason(group, move.source, is_proven=move.proof is not None)
    return found


def _reason(group: GroupState, source: str, *, is_proven: bool) -> str:
    member = group.members.get(source)
    if member is None:
        return f"{source} was gone"
    if member.is_leaving:
        instance = member.join_request.instance
        operation = next((o.id for o in group.operations.values() if instance in o.instances), None)
        return f"{source} leaves" if operation is None else f"{source} leaves, scale-down {operation}"
    if member.fenced or not is_proven:
        return f"{source} was silent, or did not release it in time"
    return "balance"
