"""How long a hand-over took, as the coordinator publishes it: after a release, after a crash, and of an idle task."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.model import (
    Copy,
    Ending,
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


END = Ending((("payments", 0, 70),), (("balances", 0, 12),), 50_090)


@pytest.mark.parametrize("reported", [None, END])
def test_the_next_owner_is_told_where_the_one_before_ended(reported: Ending | None) -> None:
    """As long as it has not begun, and not of what it has done itself."""
    life = Life(BUSY)
    for now_ms in range(200, 1_500, 100):
        leaving = MemberStatus(active={A: 1}, leaving=True, facts=BUSY)
        proof = MemberStatus(released={A: Released(1, 50_090, 50_100, reported)}, leaving=True)
        life.hear(ev.Heartbeat(1, proof if A in asked_to_release(life) else leaving), now_ms)
        copy = Copy(Role.LEARNER, 5, 5, ready=True, end_known=True)
        life.hear(ev.Heartbeat(2, replace(life.standby, copies={A: copy})), now_ms)
        life.hear(ev.Tick(), now_ms)
    assert ending_for("S2", life) == reported
    life.begin(ProcessingStarted(0, 50_140, 50_240, 50_095, awaited=True))
    life.hear(ev.Leaving("down", ("S2",), None, False), 1_700)
    assert ending_for("S2", life) is None


def test_nobody_is_told_of_an_owner_before_the_one_that_was_fenced() -> None:
    """S2 was given the task and may have committed: what S1 has said is over."""
    life = Life(BUSY)
    proof = MemberStatus(released={A: Released(1, 50_090, 50_100, END)}, leaving=True)
    copy = Copy(Role.LEARNER, 5, 5, ready=True, end_known=True)
    ready = replace(life.standby, copies={A: copy})
    life.hear(ev.Heartbeat(1, MemberStatus(active={A: 1}, leaving=True, facts=BUSY)), 200)
    life.hear(ev.Heartbeat(2, ready), 300)
    life.hear(ev.Heartbeat(1, proof), 400)
    assert life.group.owners[A].member == "S2" and ending_for("S2", life) == END
    life.hear(ev.Joined(3, JoinRequest("S2", "S2", "S2#2", "S2#2"), MemberStatus(disk={A: 5})), 500)
    for now_ms in range(600, 3_000, 100):
        life.hear(ev.Heartbeat(3, MemberStatus(disk={A: 5})), now_ms)
        life.hear(ev.Tick(), now_ms)
    assert life.group.owners[A] == Owner(A, 4, "S2", "S2#2", 2)
    assert ending_for("S2", life) is None


def ending_for(name: str, life: Life) -> Ending | None:
    """What the assignment that was sent last says."""
    member = life.group.members.get(name)
    return member.sent.endings.get(A) if member is not None and member.sent is not None else None
