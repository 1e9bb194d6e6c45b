"""How long a hand-over took, as the coordinator publishes it: after a release, after a crash, and of an idle task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.model import (
    Copy,
    JoinRequest,
    MemberStatus,
    Owner,
    ProcessingStarted,
    Released,
    Role,
    Settings,
    Task,
    TaskFacts,
    TaskId,
)

A = TaskId(0, 0)
BUSY, IDLE = {A: TaskFacts(7, 0, 0, 0)}, {A: TaskFacts(0, 0, 0, 0)}


class Life:
    """S1 runs the task, S2 has a warm copy of it; the log answers at once."""

    def __init__(self, facts: dict[TaskId, TaskFacts]) -> None:
        self.group = Group(Settings(), [Task(A)], [Owner(A, 1, "S1", "S1#1", 1)], term=2)
        self.found: list[tuple[int | None, int | None]] = []
        self.standby = MemberStatus(copies={A: Copy(Role.STANDBY, 5, 5, end_known=True)})
        for session, name, status in (
            (1, "S1", MemberStatus(active={A: 1}, facts=facts)),
            (2, "S2", self.standby),
        ):
            self.hear(ev.Joined(session, JoinRequest(name, name, f"{name}#1", f"{name}#1"), status), 0)

    def hear(self, event: ev.Event, now_ms: int) -> None:
        for effect in self.group.step(event, now_ms):
            if isinstance(effect, ev.Fence):
                had = tuple(self.group.by_transactional_id.of(effect.transactional_id))
                self.hear(ev.Fenced(effect.transactional_id, had), now_ms)
            elif isinstance(effect, ev.RecordOwners):
                self.hear(ev.OwnersRecorded(effect.records), now_ms)
            elif isinstance(effect, ev.HandedOver):
                assert (effect.source, effect.target) == ("S1", "S2")
                self.found.append((effect.gap_ms, effect.pause_ms))

    def crash(self) -> None:
        """S1 at 100 ms; S2 is given the task a second later."""
        self.hear(ev.SessionEnded(1), 100)
        for now_ms in range(200, 1_500, 100):
            self.hear(ev.Heartbeat(2, self.standby), now_ms)
            self.hear(ev.Tick(), now_ms)
        assert self.group.owners[A].member == "S2"

    def begin(self, started: ProcessingStarted, now_ms: int = 1_600) -> None:
        epoch = self.group.owners[A].epoch
        status = MemberStatus(active={A: epoch}, started={A: replace(started, epoch=epoch)})
        self.hear(ev.Heartbeat(2, status), now_ms)


def test_after_a_crash_it_runs_from_the_last_commit_in_the_log_to_the_first() -> None:
    life = Life(BUSY)
    life.crash()
    life.begin(ProcessingStarted(0, 51_500, from_ms=50_050, awaited=True))
    life.begin(ProcessingStarted(0, 51_500, 51_600, 50_050, awaited=True))
    assert life.found == [(None, 1_450), (1_550, 1_550)], "at least, then exactly"


@pytest.mark.parametrize(
    ("facts", "started", "pause"),
    [
        (IDLE, ProcessingStarted(0, 51_500, from_ms=1_000), 1_600),
        (IDLE, ProcessingStarted(0, 51_500, from_ms=51_000), 500),
        (BUSY, ProcessingStarted(0, 51_500, from_ms=1_000), None),
        (BUSY, ProcessingStarted(0, 51_500), None),
        (BUSY, ProcessingStarted(0, 51_500, awaited=True), None),
        (BUSY, ProcessingStarted(0, 51_500, from_ms=60_000, awaited=True), 0),
    ],
    ids=["idle for long", "idle", "nothing waits", "never committed", "not known", "clocks that differ"],
)
def test_what_nobody_waited_for_is_no_pause(
    facts: dict[TaskId, TaskFacts], started: ProcessingStarted, pause: int | None
) -> None:
    life = Life(facts)
    life.crash()
    life.begin(started)
    assert life.found == [(None, pause)]


@pytest.mark.parametrize(("awaited", "pause"), [(True, 140), (False, 40)])
def test_after_a_release_it_runs_from_its_end(awaited: bool, pause: int) -> None:
    life = Life(BUSY)
    for now_ms in range(200, 1_500, 100):
        leaving = MemberStatus(active={A: 1}, leaving=True, facts=BUSY)
        proof = MemberStatus(released={A: Released(1, 50_090, 50_100)}, leaving=True)
        released = A in asked_to_release(life)
        life.hear(ev.Heartbeat(1, proof if released else leaving), now_ms)
        copy = Copy(Role.LEARNER, 5, 5, ready=True, end_known=True)
        life.hear(ev.Heartbeat(2, replace(life.standby, copies={A: copy})), now_ms)
        life.hear(ev.Tick(), now_ms)
    assert life.group.owners[A].member == "S2"
    life.begin(ProcessingStarted(0, 50_140, 50_240, 50_095, awaited=awaited))
    assert life.found == [(145, pause)]


def asked_to_release(life: Life) -> list[TaskId]:
    """What S1 was asked to release."""
    member = life.group.members.get("S1")
    return list(member.sent.release) if member is not None and member.sent is not None else []
