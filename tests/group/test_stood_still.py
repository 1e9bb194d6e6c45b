"""Time in which a coordinator stood still counts neither as silence of its members nor into the grace of a new one, however short it was; and
copies that were given up, or of which the end is not known."""

from __future__ import annotations

import pytest

from orchestrator.group import events as ev
from orchestrator.group.scale_plan import leaver_costs
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.model import Copy, JoinRequest, MemberStatus, Owner, Role, Settings, Task, TaskId

TASKS = [TaskId(0, 0), TaskId(0, 1)]


def join_request(number: int) -> JoinRequest:
    return JoinRequest(f"S{number}", f"S{number}", "1", f"S{number}#1")


def status_of(group: Group, number: int) -> MemberStatus:
    """It runs its task, and has a copy of the other one's."""
    own, other = TASKS[number], TASKS[1 - number]
    copy = Copy(Role.STANDBY, 10, 10, end_known=True)
    return MemberStatus(group.generation, 1, {own: 1}, copies={other: copy}, ends={own: 10})


@pytest.mark.parametrize(("heartbeat_ms", "gap_ms"), [(1_000, 2_200), (1_000, 2_950), (1_000, 60_000), (200, 1_500)])
def test_fences_none_of_those_it_did_not_hear(heartbeat_ms: int, gap_ms: int) -> None:
    """A gap below the bound and above what members are waited for fenced every one that has a standby."""
    settings = Settings(standbys=1, heartbeat_ms=heartbeat_ms)
    owners = [Owner(task, 1, f"S{n}", f"S{n}#1", 1) for n, task in enumerate(TASKS)]
    group = Group(settings, map(Task, TASKS), owners, now_ms=0)
    for number in range(2):
        group.step(ev.Joined(number, join_request(number), status_of(group, number)), 0)
    now_ms = 0
    while now_ms < 20 * heartbeat_ms:
        now_ms += heartbeat_ms
        for number in range(2):
            group.step(ev.Heartbeat(number, status_of(group, number)), now_ms)
    group.step(ev.Tick(), now_ms := now_ms + heartbeat_ms * 9 // 10)
    effects = group.step(ev.Tick(), now_ms + gap_ms)
    assert not [one for one in effects if isinstance(one, ev.Fence)]


def test_one_that_is_slow_for_good_still_replaces_who_is_gone() -> None:
    """All of each gap was discounted, and nothing was silence any more."""
    settings = Settings(standbys=1)
    owners = [Owner(task, 1, f"S{n}", f"S{n}#1", 1) for n, task in enumerate(TASKS)]
    group = Group(settings, map(Task, TASKS), owners, now_ms=0)
    for number in range(2):
        group.step(ev.Joined(number, join_request(number), status_of(group, number)), 0)
    fenced: list[ev.Effect] = []
    for now_ms in range(0, 30_000, settings.heartbeat_ms + 100):  # the first of them is gone
        group.step(ev.Heartbeat(1, status_of(group, 1)), now_ms)
        fenced += [one for one in group.step(ev.Tick(), now_ms) if isinstance(one, ev.Fence)]
    assert fenced == [ev.Fence("S0#1")]


def test_still_waits_for_those_of_the_coordinator_before() -> None:
    settings = Settings()
    owners = [Owner(task, 1, f"S{n}", f"S{n}#1", 1) for n, task in enumerate(TASKS)]
    group = Group(settings, map(Task, TASKS), owners, term=2)
    group.step(ev.Tick(), 100)
    effects = group.step(ev.Tick(), 100 + 10 * settings.rejoin_grace_ms)
    assert not [one for one in effects if isinstance(one, ev.Fence)]


class Life:
    """Two members' own machines beside the group: what they are to open is open at once."""

    def __init__(self) -> None:
        settings = Settings(standbys=1)
        self.opened = 0
        self.group = Group(settings, [Task(TASKS[0])], now_ms=0)
        self.machines = [MemberMachine(settings) for _ in range(2)]
        for number, machine in enumerate(self.machines):
            self._do(self.group.step(ev.Joined(number, join_request(number), machine.status()), 0))

    def _do(self, effects: list[ev.Effect]) -> None:
        for one in effects:
            if isinstance(one, ev.Send):
                self.give(one.session, mem.Assigned(one.assignment))
            elif isinstance(one, ev.RecordOwners):
                self._do(self.group.step(ev.OwnersRecorded(one.records), self.group.last_step_ms))

    def give(self, number: int, event: mem.MemberEvent) -> None:
        for effect in self.machines[number].step(event, self.group.last_step_ms):
            if isinstance(effect, mem.Open | mem.ChangeRole):
                is_active = effect.role is Role.ACTIVE
                self.opened += isinstance(effect, mem.Open)
                self.give(number, mem.Started(effect.task, 1) if is_active else mem.Progress(effect.task, 9, 9))
            elif isinstance(effect, mem.Report):
                heartbeat = ev.Heartbeat(number, self.machines[number].status())
                self._do(self.group.step(heartbeat, self.group.last_step_ms))

    def passes(self, seconds: int) -> None:
        for _ in range(2 * seconds):
            now_ms = self.group.last_step_ms + 500
            for number, machine in enumerate(self.machines):
                self._do(self.group.step(ev.Heartbeat(number, machine.status()), now_ms))
            self._do(self.group.step(ev.Tick(), now_ms))


def test_a_standby_that_was_given_up_is_opened_again() -> None:
    """Its store was damaged, or its disk full for a moment: the group went on to name it, and nothing had the copy."""
    life = Life()
    life.passes(seconds=5)
    [holder] = [number for number, machine in enumerate(life.machines) if machine.held[TASKS[0]].role is Role.STANDBY]
    before = life.opened
    life.give(holder, mem.Dropped(frozenset(TASKS[:1])))
    life.passes(seconds=5)
    assert life.opened == before + 1 and life.machines[holder].held[TASKS[0]].role is Role.STANDBY


def test_a_copy_of_which_nobody_knows_how_far_it_has_to_go_is_no_ready_one() -> None:
    """One that was opened a moment ago lacks nothing yet, by its numbers: the most expensive instance left."""
    group = Group(Settings(), [Task(TASKS[0], state_bytes=100 << 30)], [Owner(TASKS[0], 1, "S0", "S0#1", 1)], now_ms=0)
    for number, copy in ((0, None), (1, Copy(Role.STANDBY))):
        status = MemberStatus(1, 1, {} if copy else {TASKS[0]: 1}, copies={} if copy is None else {TASKS[0]: copy})
        group.step(ev.Joined(number, join_request(number), status), 0)
    assert leaver_costs(group, {"S0", "S1"})["S0"][0] == 100 << 10
