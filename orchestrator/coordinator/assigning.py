"""Sends members their assignments: at once, but for releases that have to wait for their turn.

One rule: what the group wants of a member last is what counts; a turn sends no more than that. The timer of ReleaseTurns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator.release_turns import ReleaseTurns
from orchestrator.group.members import Members
from orchestrator.model import Assignment


class Assigning:
    """See the module text. `send` sends one session an assignment."""

    def __init__(self, send: Callable[[int, Assignment], None]) -> None:
        self._send = send
        self._turns = ReleaseTurns()
        self._timer: asyncio.TimerHandle | None = None

    def assign(self, session: int, wanted: Assignment, members: Members, timeout_ms: int) -> None:
        """What the group wants of the session's member now. `timeout_ms`: the release timeout."""
        member = members.of_session(session)
        runs = member.status.active if member is not None else {}
        self._send(session, self._turns.of(session, wanted, runs, monotonic_ms(), timeout_ms))
        self._wait()

    def forget(self, session: int) -> None:
        """It has ended."""
        self._turns.forget(session)

    def close(self) -> None:
        """No further turn is taken."""
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self._timer = None
        for session, assignment in self._turns.due(monotonic_ms()):
            self._send(session, assignment)
        self._wait()

    def _wait(self) -> None:
        at_ms = self._turns.next_ms()
        if self._timer is None and at_ms is not None:
            delay_s = max(0, at_ms - monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)
