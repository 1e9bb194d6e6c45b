"""The learner budget where it is easily forgotten: copies that were ready and are opened anew by the next process."""

from __future__ import annotations

from orchestrator import events as ev
from orchestrator import invariants
from orchestrator.group import Group
from orchestrator.model import Copy, Hello, Owner, Role, Settings, Status, Task, TaskId

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
