"""How far each task's changelogs go, as far as the members have told.

One rule: a member's own report is looked up when somebody asks, and kept here only when it is about to be gone; so a
heartbeat of 100 tasks, in which every end has grown, costs the group nothing. Kept by group.py, asked by views.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.columns import same_keys
from orchestrator.model import Owner, Status, TaskId
from orchestrator.roster import Member, Roster


class Ends:
    """Task -> the highest end of those who hold it, and of those who let it go."""

    def __init__(self, roster: Roster, owners: Mapping[TaskId, Owner]) -> None:
        self._roster = roster
        self._owners = owners
        self._kept: dict[TaskId, int] = {}

    def of(self, task: TaskId, otherwise: int) -> int:
        """The end of a task; `otherwise` where nobody has told one."""
        told = [end] if (end := self._kept.get(task)) is not None else []
        owner = self._owners.get(task)
        runs = self._roster.get(owner.member) if owner is not None else None
        holders: list[Member] = self._roster.reporting(task)
        for member in (*holders, runs) if runs is not None else holders:
            if (end := member.status.ends.get(task)) is not None and not member.fenced:
                told.append(end)
        return max(told, default=otherwise)

    def replaced(self, before: Status, after: Status) -> None:
        """A member told `before` and now tells `after`."""
        if not same_keys(before.ends, after.ends):
            self.keep(before)

    def keep(self, status: Status) -> None:
        """Its member tells nothing more: it is gone, or fenced."""
        for task, end in status.ends.items():
            if end > self._kept.get(task, 0):
                self._kept[task] = end
