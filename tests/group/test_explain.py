"""Sentences about moments that a scenario does not stop at: between an effect and its answer, and in an empty group."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from orchestrator.explain.task import explain_task, why_not_planned
from orchestrator.group import events as ev
from orchestrator.group.assignor_view import build_view
from orchestrator.group.convergence import holder_of
from orchestrator.group.members import is_released
from orchestrator.group.phases import REBALANCE, turn_of
from orchestrator.group.state import Phase
from orchestrator.group.step import Group
from orchestrator.model import JoinRequest, MemberStatus, Owner, Settings, Task, TaskId
from orchestrator.simulator.scenario import Scenario, parse
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import TargetAssignment

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))

T0, T1 = TaskId(0, 0), TaskId(0, 1)


def group(*members: str) -> Group:
    """S1 owns both tasks, and is in the group if it is named."""
    owners = [Owner(t, 1, "S1", "S1#1", 1) for t in (T0, T1)]
    found = Group(Settings(balancing_factor=9), [Task(T0), Task(T1)], owners)
    for session, name in enumerate(members, 1):
        active = {T0: 1, T1: 1} if name == "S1" else {}
        found.step(ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), MemberStatus(active=active)), 0)
    return found


def test_a_fence_under_way() -> None:
    here = group("S1", "S2")
    here.step(ev.Expired("S1"), 100)
    why, waiting = explain_task(here, T0)
    assert why == ["0_0 belongs to S1 since epoch 1, as the log says"]
    assert waiting == ["0_0 waits for the log to fence S1; until then nobody else may run it"]


def test_a_record_under_way() -> None:
    here = group("S1", "S2")
    here.step(ev.Expired("S1"), 100)
    here.step(ev.Fenced("S1#1", (T0, T1)), 200)
    why, waiting = explain_task(here, T0)
    assert why == ["0_0 has no owner since epoch 2: S1, its last one, was fenced or let it go"]
    assert waiting == ["0_0 goes to S2; its owner record is being written"]


def test_nobody_is_here() -> None:
    _, waiting = explain_task(group(), T0)
    assert waiting == [
        "S1 has not come back to this coordinator; 0_0 is kept for it for another 5.0 s (rejoin_grace)",
        "nobody is here to run 0_0",
    ]


def test_another_s_fence_holds_up_the_plan() -> None:
    here = Group(Settings(), [Task(T0), Task(T1)], [Owner(T0, 1, "S1", "S1#1", 1), Owner(T1, 1, "S2", "S2#1", 1)])
    for session, (name, task) in enumerate((("S1", T0), ("S2", T1)), 1):
        here.step(ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), MemberStatus(active={task: 1})), 0)
    here.step(ev.Expired("S1"), 100)
    _, waiting = explain_task(here, T1)
    assert waiting == ["nothing is planned until the log has fenced S1"]


def test_a_bounce_was_announced() -> None:
    here = group("S1", "S2")
    here.step(ev.Heartbeat(1, MemberStatus(active={T0: 1, T1: 1}, term=1, bounce=True)), 500)
    here.step(ev.SessionEnded(1), 600)
    for now in range(1_000, 4_601, 100):
        here.step(ev.Tick(), now)
        here.step(ev.Heartbeat(2, MemberStatus(term=1)), now)
    _, waiting = explain_task(here, T0)
    assert waiting == [
        "0_0 is kept for S1, which has been silent for 4.0 s, for another 6.0 s (session_timeout): it announced a bounce"
    ]


def test_silent_with_a_warm_copy_elsewhere_is_waited_for_less() -> None:
    here = Group(Settings(disconnect_grace_ms=4_000), [Task(T0, stateful=False)], [Owner(T0, 1, "S1", "S1#1", 1)])
    for session, name in enumerate(("S1", "S2"), 1):
        here.step(ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), MemberStatus()), 0)
    here.step(ev.SessionEnded(1), 100)
    here.step(ev.Tick(), 1_100)
    _, waiting = explain_task(here, T0)
    assert waiting == [
        "0_0 is kept for S1, which has been silent for 1.0 s, for another 3.0 s (disconnect_grace): it may come back"
    ]


def test_a_target_that_is_being_computed_aside() -> None:
    here = Group(Settings(), [Task(T0)], long_assignment=0)
    here.step(ev.Joined(1, JoinRequest("S1", "S1", "1", "S1#1"), MemberStatus()), 0)
    assert explain_task(here, T0)[1] == ["a new assignment is being computed"]


def test_what_the_owner_waits_for_itself() -> None:
    """Commits that wait for the log stood in `status` alone."""
    here = group("S1")
    notice = "waits for the log: locked\nthe call of f in task 0_1 has lasted 2 s\n0_1 waits: f at in-1@5: down\n0_0 is halted at in-0@7: bad"
    status = MemberStatus(active={T0: 1, T1: 1}, notice=notice, log_away=True)
    here.step(ev.Heartbeat(1, status), 100)
    shared = ["S1: waits for the log: locked", "S1: the call of f in task 0_1 has lasted 2 s"]
    assert explain_task(here, T0)[1] == shared, "the halt is in the log, and the other one waits alone"
    assert explain_task(here, T1)[1][:3] == [*shared, "S1: 0_1 waits: f at in-1@5: down"]


def test_a_learner_that_waits_for_the_log() -> None:
    scenario = Scenario()
    for block in parse((SCENARIOS[0].parent / "explain_a_move.txt").read_text("utf-8")):
        scenario.run(block)
        here = scenario.cluster.group
        for task, name in here.learners.items():
            learner = here.members.get(name)
            assert learner is not None and learner.session is not None
            here.step(
                ev.Heartbeat(
                    learner.session,
                    msgspec.structs.replace(learner.status, notice="waits for the log: full", log_away=True),
                ),
                here.last_step_ms,
            )
            assert f"{name}: waits for the log: full" in explain_task(here, task)[1]
            return
    pytest.fail("the scenario has no learner")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_it_says_is_so(path: Path) -> None:
    """After each command of each scenario, of each task, by what the group's own tables say."""
    scenario = Scenario()
    for block in parse(path.read_text("utf-8")):
        scenario.run(block)
        _judge(scenario.cluster.group, {task: name for name, task in scenario.names.items()})


def _judge(group: Group, names: dict[TaskId, str]) -> None:
    now_ms = group.last_step_ms
    reason = why_not_planned(group, now_ms)
    assert REBALANCE[group.phase, turn_of(group, now_ms)] is group.phase or not len(group.members), "the phase is old"
    free = group.phase in (Phase.PLANNING, Phase.MOVING, Phase.STABLE)
    assert not len(group.members) or (reason is None) == free, reason
    for task in group.tasks:
        why, waiting = explain_task(group, task, names)
        assert len({*why, *waiting}) == len(why) + len(waiting)
        owner, holder = group.owners.get(task), holder_of(group, task)
        runs = owner is not None and holder is not None and owner.writer not in group.fencing
        runs = runs and not (owner and holder and is_released(owner, holder))
        assert ("is active on" in why[0]) == runs, why
        silent = holder is not None and holder.silent_for(now_ms) > 2 * group.settings.heartbeat_ms
        leaves = holder is not None and any(
            m.is_leaving for m in group.members.of_instance(holder.join_request.instance)
        )
        changes = task in group.moves or task in group.recording or task in group.learners
        assert waiting or not (silent or leaves or changes or not runs), (task, why)
        for member in re.findall(r"(?:for|and) (\w+) to give", " ".join(waiting)):
            assert any(_still_has(group, member, moved) for moved in group.moves), waiting
        if reason is None:
            _judge_promises(group, waiting)


def _still_has(group: Group, member: str, task: TaskId) -> bool:
    owner, holder = group.owners.get(task), holder_of(group, task)
    return owner is not None and owner.member == member and holder is not None and not is_released(owner, holder)


def _judge_promises(group: Group, waiting: list[str]) -> None:
    """What is to come with the next rebalance does, and what balance waits for would be moved without that."""
    view = build_view(group)
    settings = replace(view.settings, max_learners_per_instance=len(view.tasks) + 1)
    unhindered = replace(view, settings=settings, given_up=frozenset(), silent=frozenset())
    for sentence in waiting:
        if "next rebalance" in sentence:
            assert _changes(group, assign_tasks(view)), sentence
        if re.match(r"\S+ carries", sentence):
            assert _changes(group, assign_tasks(unhindered)), sentence


def _changes(group: Group, plan: TargetAssignment) -> bool:
    active = build_view(group).active
    return dict(plan.learners) != dict(group.learners) or any(plan.active.get(t) != active.get(t) for t in group.tasks)
