"""Sends assignments to members: at once, but for releases that are paced.

One rule: the last assignment that the group wants of a member is the one that counts, and what is sent later is a part of it.
The timer of release_pacing.py; the coordinator's shell owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator import messages
from orchestrator.coordinator.release_pacing import ReleasePacing
from orchestrator.group.members import Members
from orchestrator.model import Assignment, TaskId


class AssignmentSender:
    """See the module text. `send` sends a message over a session; `members` returns the members of the group."""

    def __init__(self, send: Callable[[int, messages.Down], None], members: Callable[[], Members]) -> None:
        self._send = send
        self._members = members
        self._pacing = ReleasePacing()
        self._timer: asyncio.TimerHandle | None = None

    def send(self, session: int, wanted: Assignment, timeout_ms: int) -> None:
        """Sends what the group wants of the session's member now. `timeout_ms`: the release timeout."""
        running = self._running(session) or {}
        paced = self._pacing.paced(session, wanted, running, monotonic_ms(), timeout_ms)
        self._send(session, messages.Assign(paced))
        self._set_timer()

    def forget(self, session: int) -> None:
        """Sends nothing more over a session that has ended."""
        self._pacing.forget(session)

    def close(self) -> None:
        """Sends nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _send_due(self) -> None:
        self._timer = None
        for session, assignment in self._pacing.due(monotonic_ms(), self._running):
            self._send(session, messages.Assign(assignment))
        self._set_timer()

    def _running(self, session: int) -> Mapping[TaskId, int] | None:
        """Returns None of a fenced member, too: one that stands still keeps its session, and others own its tasks."""
        member = self._members().of_session(session)
        return None if member is None or member.fenced else member.status.active

    def _set_timer(self) -> None:
        at_ms = self._pacing.next_ms()
        if self._timer is None and at_ms is not None:
            delay_s = max(0, at_ms - monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._send_due)
