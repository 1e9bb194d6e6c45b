"""Copies where they are easily forgotten: ready ones that the next process opens anew, and those beside an owner."""

from __future__ import annotations

from dataclasses import replace

from orchestrator import events as ev
from orchestrator import invariants
from orchestrator.group import Group
from orchestrator.model import Copy, Hello, Owner, Role, Settings, Status, Task, TaskId, TaskRange

TASKS = [TaskId(0, partition) for partition in range(4)]


def hello(member: str, life: int) -> Hello:
    return Hello(member, member, f"{member}#{life}", f"{member}#{life}")


def test_a_learner_that_restarts_has_to_open_again_what_was_ready() -> None:
    """A new coordinator adopts S2's learners, ready ones beyond the budget; before it may plan, S2 comes back as a new
    process, in which none of them is ready."""
    owners = [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS]
    group = Group(Settings(max_learners_per_instance=1), map(Task, TASKS), owners, term=2)
    ready = {task: Copy(Role.LEARNER, 10, 10, ready=True) for task in TASKS[:3]}
    group.step(ev.Joined(1, hello("S2", 1), Status(term=1, copies=ready)), 100)
    assert set(group.learners) == set(ready)
    group.step(ev.Joined(2, hello("S2", 2), Status(disk=dict.fromkeys(ready, 10))), 200)
    invariants.check(group)


def test_an_owner_that_comes_back_finds_no_copy_of_its_task_beside_it() -> None:
    """A new coordinator hears of a standby first, and then of the owner: both are workers of one instance, which has one
    folder for the task."""
    task = TASKS[0]
    group = Group(Settings(standbys=1), map(Task, TASKS[:1]), [Owner(task, 1, "I1-0", "I1-0#1", 1)], term=2)
    copies = {task: Copy(Role.STANDBY, 10, 10)}
    group.step(ev.Joined(1, Hello("I1-1", "I1", "1", "I1-1#1"), Status(term=1, copies=copies)), 100)
    assert group.standbys[task] == ("I1-1",)
    group.step(ev.Joined(2, Hello("I1-0", "I1", "1", "I1-0#1"), Status(term=1, active={task: 1})), 200)
    assert not group.standbys[task]
    invariants.check(group)


def test_a_learner_that_is_not_taken_up_is_given_up() -> None:
    """S2 beats, and never reports the copies that it was told to learn: that is no progress either."""
    settings = Settings(learner_timeout_ms=8_000)
    group = Group(settings, map(Task, TASKS), [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS])
    status = Status(term=1, active=dict.fromkeys(TASKS, 1))
    group.step(ev.Joined(1, hello("S1", 1), status), 100)
    group.step(ev.Joined(2, hello("S2", 1), Status()), 200)
    told = set(group.learners)
    assert told and set(group.learners.values()) == {"S2"}
    for now in range(1_000, 10_000, 1_000):
        group.step(ev.Heartbeat(1, status), now)
        group.step(ev.Heartbeat(2, Status(generation=group.generation, term=1)), now)
        group.step(ev.Tick(), now)
    assert {task for task, _ in group.given_up} >= told


def test_another_version_keeps_no_standby_that_it_cannot_have() -> None:
    """Nothing is planned while others are waited for; S2 comes back without two of its tasks all the same."""
    old, new = (TaskRange(0, 0, 4),), (TaskRange(0, 0, 2),)
    owners = [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS]
    group = Group(Settings(standbys=1), map(Task, TASKS), owners)
    group.step(ev.Joined(1, replace(hello("S1", 1), tasks=old), Status(term=1, active=dict.fromkeys(TASKS, 1))), 100)
    group.step(ev.Joined(2, replace(hello("S2", 1), tasks=old), Status()), 200)
    held = set(group.standbys.of("S2")) | set(group.learners.of("S2"))
    assert held >= set(TASKS[2:])
    group.paused = True
    group.step(ev.Joined(3, replace(hello("S2", 2), tasks=new), Status()), 300)
    assert not (set(group.standbys.of("S2")) & set(TASKS[2:]))
    invariants.check(group)
