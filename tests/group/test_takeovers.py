"""Tasks whose owner is gone, and that are warm elsewhere: how soon they go on, and that nobody is fenced twice."""

from __future__ import annotations

import pytest

from orchestrator.coordinator.admin import task_facts
from orchestrator.coordinator.instance_facts import instances
from orchestrator.explain.task import explain_task
from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.model import Copy, JoinRequest, MemberStatus, Owner, Protocol, Role, Settings, Task, TaskId

A, B = TaskId(0, 0), TaskId(0, 1)
RECORDS = [Owner(A, 1, "S1", "S1#1", 1), Owner(B, 1, "S2", "S2#1", 1)]
EMPTY = Copy(Role.STANDBY, 0, 0, end_known=True)
CLOSE = Copy(Role.STANDBY, 5, 5)
UNKNOWN = Copy(Role.STANDBY)


class Life:
    """A group with a log that answers at once, in steps of 100 ms; what was fenced and recorded when, and said."""

    def __init__(self, settings: Settings, *, former: str = "", gathering: bool = False) -> None:
        self.group = Group(settings, map(Task, (A, B)), RECORDS, term=2, gathering=gathering, former=former)
        self.fences: list[tuple[int, str]] = []
        self.recorded: list[tuple[int, TaskId, str]] = []
        self.said: list[str] = []
        self.status: dict[int, MemberStatus] = {}

    def hear(self, event: ev.Event, now_ms: int) -> None:
        for effect in self.group.step(event, now_ms):
            if isinstance(effect, ev.Fence):
                self.fences.append((now_ms, effect.transactional_id))
                had = tuple(self.group.by_transactional_id.of(effect.transactional_id))
                self.hear(ev.Fenced(effect.transactional_id, had), now_ms)
            elif isinstance(effect, ev.RecordOwners):
                self.recorded += [(now_ms, record.task, record.member) for record in effect.records]
                self.hear(ev.OwnersRecorded(effect.records), now_ms)
            elif isinstance(effect, ev.Announced):
                self.said.append(effect.text)

    def join(self, session: int, name: str, now_ms: int, status: MemberStatus) -> None:
        self.status[session] = status
        self.hear(ev.Joined(session, JoinRequest(name, name, f"{name}#1", f"{name}#1"), status), now_ms)

    def go_on(self, begin_ms: int, end_ms: int) -> None:
        """Those who are here send heartbeats."""
        for now_ms in range(begin_ms, end_ms, 100):
            for session, status in self.status.items():
                self.hear(ev.Heartbeat(session, status), now_ms)
            self.hear(ev.Tick(), now_ms)


def two(copy: Copy, settings: Settings) -> Life:
    life = Life(settings)
    life.join(1, "S1", 0, MemberStatus(active={A: 1}))
    life.join(2, "S2", 0, MemberStatus(active={B: 1}, copies={A: copy}))
    return life


@pytest.mark.parametrize(("copy", "after_ms"), [(EMPTY, 1_000), (CLOSE, 1_000), (UNKNOWN, 10_000)])
def test_a_standby_of_an_empty_changelog_is_warm(copy: Copy, after_ms: int) -> None:
    life = two(copy, Settings(standbys=1))
    del life.status[1]
    life.hear(ev.SessionEnded(1), 100)
    life.go_on(200, 12_000)
    assert (100 + after_ms, A, "S2") in life.recorded


@pytest.mark.parametrize(("leaves", "after_ms"), [(False, 10_000), (True, 1_000)])
def test_a_bounce_is_waited_for_unless_it_is_of_a_leaver(leaves: bool, after_ms: int) -> None:
    life = two(CLOSE, Settings(standbys=1))
    life.hear(ev.Heartbeat(1, MemberStatus(active={A: 1}, bounce=True)), 50)
    if leaves:
        life.hear(ev.Leaving("down", ("S1",)), 50)
        life.status[2] = MemberStatus(active={B: 1}, copies={A: Copy(Role.LEARNER, 5, 5, ready=True)})
        life.hear(ev.Heartbeat(2, life.status[2]), 60)
    del life.status[1]
    life.hear(ev.SessionEnded(1), 100)
    life.go_on(200, 12_000)
    assert (100 + after_ms, A, "S2") in life.recorded


def test_a_fenced_member_is_fenced_once() -> None:
    """It is fenced for its copies elsewhere, and forgotten when its session would have ended."""
    life = two(CLOSE, Settings(standbys=1))
    del life.status[1]
    life.hear(ev.SessionEnded(1), 100)
    life.go_on(200, 15_000)
    assert life.group.members.get("S1") is None
    assert life.fences == [(1_100, "S1#1")]
    assert life.said.count("S1 fenced") == 1


def test_copies_of_a_fenced_member_are_not_shown() -> None:
    """`status` had a stopped instance as a warm standby of others' tasks, and no row for the instance."""
    life = Life(Settings(standbys=1))
    life.join(1, "S1", 0, MemberStatus(active={A: 1}, copies={B: CLOSE}))
    life.join(2, "S2", 0, MemberStatus(active={B: 1}, copies={A: CLOSE}))
    assert [row["instance"] for row in task_facts(life.group, A)["standbys"]] == ["S2"]
    del life.status[2]
    life.hear(ev.SessionEnded(2), 100)
    life.go_on(200, 2_000)
    fenced = life.group.members.get("S2")
    assert fenced is not None and fenced.fenced, "it is there until its session would have ended"
    assert [row["id"] for row in instances(life.group)] == ["S1"] and task_facts(life.group, A)["standbys"] == []


def test_an_instance_that_is_silent_says_so() -> None:
    """It was `running`, without a word, until its session ended."""
    life = two(UNKNOWN, Settings())
    life.go_on(0, 1_000)
    assert [row["notices"] for row in instances(life.group)] == [[], []]
    del life.status[2]
    life.hear(ev.SessionEnded(2), 1_000)
    life.go_on(1_100, 3_600)
    assert [row["notices"] for row in instances(life.group)] == [[], ["has been silent for 2.5 s"]]


def test_tasks_of_a_coordinator_that_crashed_go_on_after_the_grace_of_everybody() -> None:
    """Others gather for two seconds yet; who has a close copy of a task that nobody runs goes on with it."""
    life = Life(Settings(standbys=1), former="S1", gathering=True)
    life.join(2, "S2", 200, MemberStatus(generation=4, active={B: 1}, copies={A: EMPTY}))
    life.go_on(300, 500)
    kept = "S1 has not come back to this coordinator; 0_0 is kept for it for another 600 ms (disconnect_grace)"
    assert kept in explain_task(life.group, A)[1]
    life.go_on(500, 1_500)
    assert life.fences == [(1_000, "S1#1")] and life.recorded == [(1_100, A, "S2")]
    assert life.group.gathering and not life.group.learners


def test_without_a_copy_they_wait_for_its_disk() -> None:
    life = Life(Settings(standbys=1), former="S1", gathering=True)
    life.join(2, "S2", 200, MemberStatus(generation=4, active={B: 1}))
    life.go_on(300, 4_900)
    assert not life.fences and not life.recorded


def test_whoever_is_not_known_to_be_gone_has_the_grace_of_a_new_coordinator() -> None:
    for former in ("", "S11", "S"):
        life = Life(Settings(standbys=1), former=former, gathering=True)
        life.join(2, "S2", 200, MemberStatus(generation=4, active={B: 1}, copies={A: CLOSE}))
        life.go_on(300, 4_900)
        assert not life.fences


def test_of_several_close_copies_the_owner_before_goes_on_else_the_closest() -> None:
    for back, taker in ((False, "S3"), (True, "S1")):
        life = Life(Settings(standbys=2), former="S1", gathering=True)
        life.join(2, "S2", 200, MemberStatus(generation=4, active={B: 1}, copies={A: Copy(Role.STANDBY, 5, 9)}))
        life.join(3, "S3", 200, MemberStatus(generation=4, copies={A: Copy(Role.STANDBY, 7, 9)}))
        if back:  # another incarnation, with its disk
            request = JoinRequest("S1", "S1", "S1#2", "S1#2")
            life.hear(ev.Joined(1, request, MemberStatus(disk={A: 8}, ends={A: 9})), 400)
        life.go_on(500, 1_500)
        assert [(task, name) for _, task, name in life.recorded] == [(A, taker)]
        assert not set(life.group.standbys.get(A, ())) & {taker}


def test_an_eager_group_takes_nothing_over_alone() -> None:
    life = Life(Settings(standbys=1, protocol=Protocol.EAGER), former="S1", gathering=True)
    life.join(2, "S2", 200, MemberStatus(generation=4, active={B: 1}, copies={A: CLOSE}))
    life.go_on(300, 1_900)
    assert life.fences and not life.recorded
