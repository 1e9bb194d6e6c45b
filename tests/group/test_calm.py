"""A coordinator of a group in which nothing is under way looks at its clock twice a second, and at once when that changes."""

from __future__ import annotations

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.group.timeouts import is_calm
from orchestrator.model import JoinRequest, MemberStatus, Settings, Task, TaskId, TaskRange

SETTINGS = Settings(initial_delay_ms=0)
TASKS = [Task(TaskId(0, number)) for number in range(4)]


def joined(session: int, name: str) -> ev.Joined:
    return ev.Joined(
        session, JoinRequest(name, name, "x", f"app-{name}-x", tasks=(TaskRange(0, 0, 4),)), MemberStatus()
    )


def settled() -> Group:
    """A group of one member that has its tasks."""
    group = Group(SETTINGS, TASKS)
    effects = [*group.step(joined(1, "a"), 0), *group.step(ev.Tick(), 100)]
    owners = next(effect.records for effect in effects if isinstance(effect, ev.RecordOwners))
    assert not is_calm(group, 100)
    group.step(ev.OwnersRecorded(owners), 100)
    group.step(ev.Heartbeat(1, MemberStatus(active=dict.fromkeys((task.id for task in TASKS), 1))), 200)
    return group


def test_a_settled_group_is_calm_until_a_heartbeat_is_late() -> None:
    group = settled()
    assert is_calm(group, 300)
    assert is_calm(group, 200 + SETTINGS.heartbeat_ms)
    assert not is_calm(group, 200 + SETTINGS.heartbeat_ms * 2)


def test_a_connection_that_ends_is_watched_closely() -> None:
    group = settled()
    group.step(ev.SessionEnded(1), 300)
    assert not is_calm(group, 300)


def test_what_moves_is_watched_closely() -> None:
    group = settled()
    group.step(joined(2, "b"), 300)
    assert not is_calm(group, 300)
