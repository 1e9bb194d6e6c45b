"""How far each task's changelogs go, as far as the members have reported.

One rule: a member's own report is looked up when it is needed, and kept here only when it is about to be gone; so a
heartbeat of 100 tasks, in which every end has grown, costs the group nothing. Kept by step.py, asked by assignor_view.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.group.members import Member, Members
from orchestrator.group.shared_keys import same_keys
from orchestrator.model import MemberStatus, Owner, TaskId


class EndOffsets:
    """Task -> the highest end of those who hold it, and of those who let it go."""

    def __init__(self, members: Members, owners: Mapping[TaskId, Owner]) -> None:
        self._members = members
        self._owners = owners
        self._kept: dict[TaskId, int] = {}

    def of(self, task: TaskId, otherwise: int) -> int:
        """The end of a task; `otherwise` where no member has reported one."""
        reported = [end] if (end := self._kept.get(task)) is not None else []
        owner = self._owners.get(task)
        runs = self._members.get(owner.member) if owner is not None else None
        holders: list[Member] = self._members.reporting(task)
        for member in (*holders, runs) if runs is not None else holders:
            if (end := member.status.ends.get(task)) is not None and not member.fenced:
                reported.append(end)
        return max(reported, default=otherwise)

    def replaced(self, before: MemberStatus, after: MemberStatus) -> None:
        """A member reported `before` and now reports `after`."""
        if not same_keys(before.ends, after.ends):
            self.keep(before)

    def keep(self, status: MemberStatus) -> None:
        """Its member reports nothing more: it is gone, or fenced."""
        for task, end in status.ends.items():
            if end > self._kept.get(task, 0):
                self._kept[task] = end
