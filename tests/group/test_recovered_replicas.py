"""Copies where they are easily forgotten: ready ones that the next process opens anew, and those beside an owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from orchestrator.group import events as ev
from orchestrator.group import invariants
from orchestrator.group.step import Group
from orchestrator.model import Copy, JoinRequest, MemberStatus, Owner, Role, Settings, Task, TaskId, TaskRange

TASKS = [TaskId(0, partition) for partition in range(4)]


def join_request(member: str, life: int) -> JoinRequest:
    return JoinRequest(member, member, f"{member}#{life}", f"{member}#{life}")


def test_a_learner_that_restarts_has_to_open_again_what_was_ready() -> None:
    """A new coordinator adopts S2's learners, ready ones beyond the budget; before it may plan, S2 comes back as a new
    process, in which none of them is ready."""
    owners = [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS]
    group = Group(Settings(max_learners_per_instance=1), map(Task, TASKS), owners, term=2)
    ready = {task: Copy(Role.LEARNER, 10, 10, ready=True) for task in TASKS[:3]}
    group.step(ev.Joined(1, join_request("S2", 1), MemberStatus(term=1, copies=ready)), 100)
    assert set(group.learners) == set(ready)
    group.step(ev.Joined(2, join_request("S2", 2), MemberStatus(disk=dict.fromkeys(ready, 10))), 200)
    invariants.check(group)


def test_an_owner_that_comes_back_finds_no_copy_of_its_task_beside_it() -> None:
    """A new coordinator hears of a standby first, and then of the owner: both are workers of one instance, which has one
    folder for the task."""
    task = TASKS[0]
    group = Group(Settings(standbys=1), map(Task, TASKS[:1]), [Owner(task, 1, "I1-0", "I1-0#1", 1)], term=2)
    copies = {task: Copy(Role.STANDBY, 10, 10)}
    group.step(ev.Joined(1, JoinRequest("I1-1", "I1", "1", "I1-1#1"), MemberStatus(term=1, copies=copies)), 100)
    assert group.standbys[task] == ("I1-1",)
    group.step(ev.Joined(2, JoinRequest("I1-0", "I1", "1", "I1-0#1"), MemberStatus(term=1, active={task: 1})), 200)
    assert not group.standbys[task]
    invariants.check(group)


def test_a_learner_that_is_not_taken_up_is_given_up() -> None:
    """S2 beats, and never reports the copies that it was told to learn: that is no progress either."""
    settings = Settings(learner_timeout_ms=8_000)
    group = Group(settings, map(Task, TASKS), [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS])
    status = MemberStatus(term=1, active=dict.fromkeys(TASKS, 1))
    group.step(ev.Joined(1, join_request("S1", 1), status), 100)
    group.step(ev.Joined(2, join_request("S2", 1), MemberStatus()), 200)
    told = set(group.learners)
    assert told and set(group.learners.values()) == {"S2"}
    for now in range(1_000, 10_000, 1_000):
        group.step(ev.Heartbeat(1, status), now)
        group.step(ev.Heartbeat(2, MemberStatus(generation=group.generation, term=1)), now)
        group.step(ev.Tick(), now)
    assert {task for task, _ in group.given_up} >= told


@pytest.mark.parametrize(
    ("comes", "copy", "given_up"),
    (
        ("not at all", lambda second: Copy(Role.LEARNER, 0, 500), True),
        ("by positions", lambda second: Copy(Role.LEARNER, second, 500, end_known=True), False),
        ("by bytes of a snapshot", lambda second: Copy(Role.LEARNER, 0, 500, read=second << 20), False),
        ("level, and waits for others", lambda second: Copy(Role.LEARNER, 500, 500, end_known=True), False),
        (
            "level, until one record comes",
            lambda second: Copy(Role.LEARNER, 500, 500 + second // 15, end_known=True),
            False,
        ),
        ("has nothing, as far as it knows", lambda second: Copy(Role.LEARNER, 0, 0), True),
    ),
)
def test_a_learner_is_given_up_where_it_does_not_come_forward(
    comes: str, copy: Callable[[int], Copy], given_up: bool
) -> None:
    """A snapshot of few large entries has hardly any positions, and with `ready` conservative one that is level is not ready
    before the others of its worker are."""
    settings = Settings(learner_timeout_ms=8_000)
    group = Group(settings, map(Task, TASKS), [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS])
    status = MemberStatus(term=1, active=dict.fromkeys(TASKS, 1))
    group.step(ev.Joined(1, join_request("S1", 1), status), 100)
    group.step(ev.Joined(2, join_request("S2", 1), MemberStatus()), 200)
    learned = sorted(group.learners)
    assert learned
    for second in range(1, 20):
        group.step(ev.Heartbeat(1, status), second * 1_000)
        copies = dict.fromkeys(learned, copy(second))
        group.step(ev.Heartbeat(2, MemberStatus(generation=1, term=1, copies=copies)), second * 1_000)
        group.step(ev.Tick(), second * 1_000)
    assert bool(group.given_up) == given_up, comes


def test_another_version_keeps_no_standby_that_it_cannot_have() -> None:
    """Nothing is planned while others are waited for; S2 comes back without two of its tasks all the same."""
    old, new = (TaskRange(0, 0, 4),), (TaskRange(0, 0, 2),)
    owners = [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS]
    group = Group(Settings(standbys=1), map(Task, TASKS), owners)
    group.step(
        ev.Joined(1, replace(join_request("S1", 1), tasks=old), MemberStatus(term=1, active=dict.fromkeys(TASKS, 1))),
        100,
    )
    group.step(ev.Joined(2, replace(join_request("S2", 1), tasks=old), MemberStatus()), 200)
    held = set(group.standbys.of("S2")) | set(group.learners.of("S2"))
    assert held >= set(TASKS[2:])
    group.hold(True)
    group.step(ev.Joined(3, replace(join_request("S2", 2), tasks=new), MemberStatus()), 300)
    assert not (set(group.standbys.of("S2")) & set(TASKS[2:]))
    invariants.check(group)
