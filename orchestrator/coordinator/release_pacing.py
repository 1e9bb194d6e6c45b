"""Paces the releases that a group asks for: a few at a time, so that hand-overs do not share their machines with others that
began with them.

One rule: a release that waits is left out, and its task is sent as what it still is, active at its owner; so waiting costs
nothing, and it ends within a bound. Pure; time comes in. Only the learner protocol is paced: in the others a rebalance stops
what moves anyhow. The group's core knows nothing of this: to it a release is asked for, and not answered yet. The
coordinator's shell sends each assignment through here (assignment_sender.py). Decision 120.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from orchestrator.model import Assignment, Protocol, TaskId

BETWEEN_MS = 100  # four hand-overs at once kept two cores busy for 170 ms
SHARE = 4  # of those that wait one in so many is asked for at a time: each time costs a member an assignment
MOST_MS = 400  # none waits for longer
OF_TIMEOUT = 4  # nor for longer than this part of the release timeout, which has begun


class _Waiting(NamedTuple):
    session: int
    task: TaskId


class ReleasePacing:
    """See the module text. Sessions are those of members with the coordinator."""

    def __init__(self) -> None:
        self._until_ms: dict[_Waiting, int] = {}  # in order; by when each is asked for
        self._waiting: dict[int, dict[TaskId, int]] = {}  # the same by session, with the epochs
        self._asked: dict[int, dict[TaskId, int]] = {}  # those of the last assignment that were asked for
        self._wanted: dict[int, Assignment] = {}  # the last one of each session with releases
        self._next_ms = 0  # when the next ones may be asked for

    def paced(
        self, session: int, wanted: Assignment, running: Mapping[TaskId, int], now_ms: int, timeout_ms: int
    ) -> Assignment:
        """Returns what is sent of an assignment now. `running`: the tasks that the member reports as active, with their epochs; a
        release of another task is only a proof, and does not wait. `timeout_ms`: the release timeout."""
        if not wanted.release:
            self.forget(session)
            return wanted
        until_ms = now_ms + min(MOST_MS, timeout_ms // OF_TIMEOUT)
        waited, asked = self._waiting.get(session, {}), self._asked.get(session, {})
        self._drop(session, [task for task, epoch in waited.items() if wanted.release.get(task) != epoch])
        waiting: dict[TaskId, int] = {}
        for task, epoch in wanted.release.items():
            if asked.get(task) == epoch or running.get(task) != epoch or wanted.protocol is not Protocol.LEARNER:
                continue
            if task in waited:
                waiting[task] = epoch
            elif self._until_ms or now_ms < self._next_ms:
                waiting[task] = epoch
                self._until_ms[_Waiting(session, task)] = until_ms
            else:
                self._next_ms = now_ms + BETWEEN_MS
        self._drop(session, waited.keys() - waiting.keys())
        self._wanted[session], self._waiting[session] = wanted, waiting
        self._asked[session] = _without(wanted.release, waiting)
        return self._to_send(session)

    def due(self, now_ms: int, running: Callable[[int], Mapping[TaskId, int] | None]) -> list[tuple[int, Assignment]]:
        """Returns what is sent now because releases have waited for long enough, each with its session. `running`: returns the
        active tasks of a session's member as they are now, None where nothing is to be sent to it any more."""
        count = 0
        if self._until_ms and now_ms >= self._next_ms:
            count = ceil(len(self._until_ms) / SHARE)
            self._next_ms = now_ms + BETWEEN_MS
        late = sum(until_ms <= now_ms for until_ms in self._until_ms.values())
        sessions: dict[int, None] = {}
        for session, task in list(self._until_ms)[: max(count, late)]:
            self._ask(session, [task])
            sessions[session] = None
        found: list[tuple[int, Assignment]] = []
        for session in sessions:
            active = running(session)
            if active is None:
                self.forget(session)
                continue
            given_up = [task for task, epoch in self._waiting[session].items() if active.get(task) != epoch]
            self._ask(session, given_up)
            found.append((session, self._to_send(session)))
        return found

    def next_ms(self) -> int | None:
        """Returns when `due` is called next; None where no release waits."""
        first = next(iter(self._until_ms.values()), None)
        return None if first is None else min(self._next_ms, first)

    def forget(self, session: int) -> None:
        """Ends what waits of a session: it is over, or its member has nothing to release."""
        self._drop(session, list(self._waiting.get(session, ())))
        for kept in (self._waiting, self._asked, self._wanted):
            kept.pop(session, None)

    def _ask(self, session: int, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self._asked[session][task] = self._waiting[session][task]
            self._drop(session, [task])

    def _drop(self, session: int, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self._until_ms.pop(_Waiting(session, task), None)
            self._waiting[session].pop(task, None)

    def _to_send(self, session: int) -> Assignment:
        wanted, waiting = self._wanted[session], self._waiting[session]
        if not waiting:
            return wanted
        return replace(wanted, active={**wanted.active, **waiting}, release=_without(wanted.release, waiting))


def _without(releases: Mapping[TaskId, int], waiting: Collection[TaskId]) -> dict[TaskId, int]:
    return {task: epoch for task, epoch in releases.items() if task not in waiting}
