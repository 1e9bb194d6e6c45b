"""What is called off, or never begun, when somebody is cut off or fenced: a task moves only to who is ready for it, and
nobody is fenced for a release that nobody waits for any more."""

from __future__ import annotations

from typing import ClassVar

import pytest
from msgspec.structs import replace

from orchestrator.explain.task import explain_task
from orchestrator.group import changes, timeouts
from orchestrator.group import events as ev
from orchestrator.group.assignor_view import build_view
from orchestrator.group.convergence import is_stable
from orchestrator.group.reconcile import reconcile
from orchestrator.group.state import Move
from orchestrator.group.step import Group
from orchestrator.member.machine import Held
from orchestrator.model import (
    Copy,
    JoinRequest,
    MemberStatus,
    Owner,
    Protocol,
    Released,
    Role,
    Settings,
    Task,
    TaskId,
)
from orchestrator.simulator.scenario_cluster import ScenarioCluster
from orchestrator.simulator.scenario_members import Member
from orchestrator.task_assignor.view import TargetAssignment

TASKS = [TaskId(0, partition) for partition in range(4)]


def leaving_and_cut_off() -> ScenarioCluster:
    """S2 leaves, S1 and S3 have begun to learn its tasks, and its connection ends."""
    world = ScenarioCluster(Settings())
    world.declare([Task(task) for task in TASKS], {"S1": TASKS[:2], "S2": TASKS[2:]})
    world.join(world.new_node("S3", "S3", 1, ""))
    leaver = world.nodes["S2"]
    world.leaving(leaver)
    session, leaver.session = leaver.session, None
    assert session is not None
    world.to_group(ev.SessionEnded(session))
    world.settle()
    return world


def owners(world: ScenarioCluster) -> list[str]:
    return [world.group.owners[task].member for task in TASKS]


def test_a_leaver_that_reconnects_still_has_its_tasks() -> None:
    world = leaving_and_cut_off()
    assert not world.group.moves, "nobody is ready for them"
    world.connect(world.nodes["S2"])
    world.settle()
    assert owners(world) == ["S1", "S1", "S2", "S2"]
    assert set(world.group.learners) == {TASKS[0], TASKS[2], TASKS[3]}, "and it still hands them over"


def test_a_leaver_that_stays_away_is_replaced_after_the_session_timeout() -> None:
    world = leaving_and_cut_off()
    world.tick(9_000)
    assert owners(world) == ["S1", "S1", "S2", "S2"]
    world.tick(2_000)
    assert owners(world) == ["S1", "S1", "S1", "S3"]


def test_the_last_one_that_leaves_is_at_rest() -> None:
    world = ScenarioCluster(Settings())
    world.declare([Task(task) for task in TASKS], {})
    for name in ("S1", "S2"):
        world.join(world.new_node(name, name, 1, ""))
    for task in TASKS:
        world.ready(world.nodes["S2"], task)
        world.settle()
    assert is_stable(world.group)
    for name in ("S1", "S2"):
        world.leaving(world.nodes[name])
    assert not is_stable(world.group), "S1 hands over to S2, which had begun to learn its tasks"
    for task in TASKS:
        world.ready(world.nodes["S2"], task)
        world.settle()
    assert world.nodes["S2"].alive and not world.nodes["S1"].alive
    assert is_stable(world.group)


def test_nobody_is_fenced_for_a_move_to_somebody_fenced() -> None:
    """S2 owes S3 a task and S1 owes S2 one, both for too long: with S2 fenced nobody waits for S1."""
    names, tasks = ("S1", "S2", "S3"), TASKS[:2]
    owners = [Owner(tasks[0], 1, "S2", "S2#1", 1), Owner(tasks[1], 1, "S1", "S1#1", 1)]
    group = Group(Settings(session_timeout_ms=60_000), [Task(task) for task in tasks], owners)
    group.hold(True)
    held = {o.member: MemberStatus(term=1, active={o.task: o.epoch}) for o in owners}
    for session, name in enumerate(names, 1):
        group.step(
            ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), held.get(name, MemberStatus(term=1))), 0
        )
    group.moves[tasks[0]] = Move("S3", 0, "S2", True)
    group.moves[tasks[1]] = Move("S2", 0, "S1", True)
    fenced: list[str] = []
    for now_ms in range(500, 10_500, 500):
        group.step(ev.Heartbeat(3, MemberStatus(term=1)), now_ms)
        fenced += [e.transactional_id for e in group.step(ev.Tick(), now_ms) if isinstance(e, ev.Fence)]
    assert fenced == ["S2#1"]
    assert not group.moves.of("S2")


@pytest.mark.parametrize("speaks", [True, False])
def test_an_owner_in_a_long_call_is_not_fenced_for_its_release(speaks: bool) -> None:
    """Its heartbeats come beside the call; only one that is silent as well is fenced."""
    [task] = tasks = TASKS[:1]
    group = Group(Settings(session_timeout_ms=60_000), [Task(task)], [Owner(task, 1, "S1", "S1#1", 1)])
    group.hold(True)
    held = MemberStatus(term=1, active={task: 1})
    group.step(ev.Joined(1, JoinRequest("S1", "S1", "1", "S1#1"), held), 0)
    group.step(ev.Joined(2, JoinRequest("S2", "S2", "1", "S2#1"), MemberStatus(term=1)), 0)
    group.moves[task] = Move("S2", 0, "S1", True)
    fenced: list[str] = []
    for now_ms in range(500, 40_000, 500):
        if speaks:
            group.step(ev.Heartbeat(1, held), now_ms)
        group.step(ev.Heartbeat(2, MemberStatus(term=1)), now_ms)
        fenced += [e.transactional_id for e in group.step(ev.Tick(), now_ms) if isinstance(e, ev.Fence)]
    assert fenced == ([] if speaks else ["S1#1"])
    assert group.moves[task].target == "S2" and tasks, "it still goes there once it is released"


def test_an_owner_that_has_given_the_task_up_is_not_fenced_for_it() -> None:
    """Behind a barrier it waits for others, silent or not."""
    [task] = TASKS[:1]
    group = Group(Settings(session_timeout_ms=60_000), [Task(task)], [Owner(task, 1, "S1", "S1#1", 1)])
    group.hold(True)
    held = MemberStatus(term=1, active={task: 1})
    group.step(ev.Joined(1, JoinRequest("S1", "S1", "1", "S1#1"), held), 0)
    assert list(timeouts._fence_holder(group, task, 50_000)), "it is silent, and has the task"
    group.members.get("S1").status = MemberStatus(term=1, released={task: Released(1)})  # type: ignore[union-attr]
    assert not list(timeouts._fence_holder(group, task, 50_000))


def test_a_learner_that_stands_still_is_given_up_however_often_it_reconnects() -> None:
    world = ScenarioCluster(Settings(learner_timeout_ms=20_000))
    world.declare([Task(task) for task in TASKS], {"S1": TASKS})
    world.join(world.new_node("S2", "S2", 1, ""))
    assert set(world.group.learners) == {TASKS[0], TASKS[1]}
    for _ in range(5):
        world.tick(5_000)
        world.connect(world.nodes["S2"])
        world.settle()
    assert not {TASKS[0], TASKS[1]} & set(world.group.learners)


def test_between_the_grace_and_the_tick_that_fences_nothing_is_planned() -> None:
    """A new coordinator's rejoin grace is over, and the absent owner not yet fenced: its tasks are still its own."""
    settings = Settings(rejoin_grace_ms=2_000)
    group = Group(settings, map(Task, TASKS), [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS], term=2)
    group.step(ev.Joined(1, JoinRequest("S2", "S2", "1", "S2#1"), MemberStatus()), 100)
    for at_ms in range(500, 2_000, 500):
        group.step(ev.Tick(), at_ms)
    group.step(ev.Heartbeat(1, MemberStatus(term=2, disk={TASKS[0]: 5})), 2_050)
    assert not group.moves
    effects = group.step(ev.Tick(), 2_100)
    assert ev.Fence("S1#1") in effects


class Caller(Member):
    """Its releases of some tasks wait for a call; its heartbeats go on."""

    in_call: ClassVar[set[TaskId]] = set()

    def release(self, task: TaskId, epoch: int) -> None:
        if task not in self.in_call:
            super().release(task, epoch)


class Calling(ScenarioCluster):
    """A cluster of callers."""

    member = Caller

    def __init__(self, settings: Settings, in_call: set[TaskId]) -> None:
        super().__init__(settings)
        Caller.in_call = in_call

    def ended(self, name: str, task: TaskId) -> None:
        Caller.in_call.discard(task)
        node = self.nodes[name]
        node.release(task, node.machine.held[task].epoch)
        self.settle()


@pytest.mark.parametrize("protocol", [Protocol.EAGER, Protocol.COOPERATIVE])
def test_a_round_goes_on_without_the_task_of_an_owner_in_a_long_call(protocol: Protocol) -> None:
    """Two tasks are to move, and one of them is in a call: the other one moves after the release timeout, nobody is fenced,
    and the late one moves when its call has ended."""
    world = Calling(Settings(protocol=protocol), {TASKS[0]})
    world.declare([Task(task) for task in TASKS], {"S1": TASKS})
    world.join(world.new_node("S2", "S2", 1, ""))
    assert world.group.barrier and owners(world) == ["S1"] * 4
    world.tick(9_000)
    assert world.group.barrier and owners(world) == ["S1"] * 4
    world.tick(2_000)
    assert not world.group.barrier and owners(world) == ["S1", "S2", "S1", "S1"]
    assert [world.nodes["S1"].machine.held[task].state for task in TASKS[2:]] == [Held.RUNNING] * 2
    assert not is_stable(world.group) and not world.group.fenced
    told = "0_0 moves when S1 has ended its call and let go; the others went on without it"
    assert told in explain_task(world.group, TASKS[0])[1]
    world.tick(30_000)
    assert owners(world) == ["S1", "S2", "S1", "S1"] and not world.group.fenced
    world.ended("S1", TASKS[0])
    assert sorted(owners(world)) == ["S1", "S1", "S2", "S2"]
    assert not world.group.postponed and not world.group.moves and not world.group.fenced


@pytest.mark.parametrize("protocol", [Protocol.EAGER, Protocol.COOPERATIVE])
def test_no_standby_comes_beside_an_owner_in_a_long_call(protocol: Protocol) -> None:
    """The task is to go to S2, and S1 could have its standby then, in its other worker; until the call has ended it would be a second copy."""
    world = Calling(Settings(protocol=protocol, standbys=1), {TASKS[0]})
    world.declare([Task(task) for task in TASKS], {"S1": TASKS})
    world.join(world.new_node("S1b", "S1", 1, ""))
    world.join(world.new_node("S2", "S2", 1, ""))
    world.tick(11_000)
    group = world.group
    assert TASKS[0] in group.postponed and owners(world)[0] == "S1"
    target = TargetAssignment(
        {task: group.owners[task].member for task in TASKS} | {TASKS[0]: "S2"},
        {},
        {TASKS[0]: ("S1b",), TASKS[1]: ("S1b",)},
        frozenset([TASKS[0]]),
    )
    (agreed,) = [
        one for one in reconcile(group, build_view(group), target, 12_000) if isinstance(one, changes.TargetAgreed)
    ]
    assert agreed.standbys == {TASKS[1]: ("S1b",)} and TASKS[0] not in agreed.moves


@pytest.mark.parametrize("away", [True, False])
def test_while_the_log_is_away_no_release_is_called_off_and_no_learner_given_up(away: bool) -> None:
    """S1 and S2 say for a minute and more that they wait for the log. Nothing of theirs could have got on, so their time
    begins when the log is back."""
    learner, owned = TASKS[:2]
    owners = [Owner(learner, 1, "S1", "S1#1", 1), Owner(owned, 1, "S1", "S1#1", 1)]
    group = Group(Settings(), [Task(task) for task in (learner, owned)], owners)
    group.hold(True)
    held = MemberStatus(term=1, active={learner: 1, owned: 1}, log_away=away)
    copying = MemberStatus(term=1, copies={learner: Copy(Role.LEARNER, 5, 100_000, end_known=True)}, log_away=away)
    group.step(ev.Joined(1, JoinRequest("S1", "S1", "1", "S1#1"), held), 0)
    group.step(ev.Joined(2, JoinRequest("S2", "S2", "1", "S2#1"), copying), 0)
    group.moves[owned] = Move("S2", 0, "S1", True)
    group.learners[learner] = "S2"
    group.barrier = True

    def go_on(begin_ms: int, end_ms: int, *statuses: MemberStatus) -> None:
        for now_ms in range(begin_ms, end_ms, 500):
            for session, status in enumerate(statuses, 1):
                group.step(ev.Heartbeat(session, status), now_ms)
            group.step(ev.Tick(), now_ms)

    go_on(500, 70_000, held, copying)
    assert (owned in group.moves, learner in group.learners) == (away, away)
    back = (replace(held, log_away=False), replace(copying, log_away=False))
    go_on(70_000, 79_000, *back)
    assert (owned in group.moves, learner in group.learners) == (away, away), "it has its time from now on"
    go_on(79_000, 131_000, *back)
    assert owned not in group.moves and learner not in group.learners and not group.fenced
