"""A leaver whose connection ends is silent like anybody: only what is ready elsewhere moves before its time is over."""

from __future__ import annotations

from orchestrator import events as ev
from orchestrator.model import Settings, Task, TaskId
from orchestrator.world import World

TASKS = [TaskId(0, partition) for partition in range(4)]


def leaving_and_cut_off() -> World:
    """S2 leaves, S1 and S3 have begun to learn its tasks, and its connection ends."""
    world = World(Settings())
    world.declare([Task(task) for task in TASKS], {"S1": TASKS[:2], "S2": TASKS[2:]})
    world.join("S3", "S3", 1, "")
    leaver = world.nodes["S2"]
    world.leaving(leaver)
    session, leaver.session = leaver.session, None
    assert session is not None
    world._to_group(ev.SessionEnded(session))
    world.settle()
    return world


def owners(world: World) -> list[str]:
    return [world.group.owners[task].member for task in TASKS]


def test_a_leaver_that_reconnects_still_has_its_tasks() -> None:
    world = leaving_and_cut_off()
    assert not world.group.moves, "nobody is ready for them"
    world._connect(world.nodes["S2"])
    world.settle()
    assert owners(world) == ["S1", "S1", "S2", "S2"]
    assert set(world.group.learners) == {TASKS[0], TASKS[2], TASKS[3]}, "and it still hands them over"


def test_a_leaver_that_stays_away_is_replaced_after_the_session_timeout() -> None:
    world = leaving_and_cut_off()
    world.tick(9_000)
    assert owners(world) == ["S1", "S1", "S2", "S2"]
    world.tick(2_000)
    assert owners(world) == ["S1", "S1", "S1", "S3"]
