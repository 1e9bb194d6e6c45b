"""Changes of the group's state: each has a rule, reconcile only decides, and the phase follows."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.group import changes as ch
from orchestrator.group import events as ev
from orchestrator.group.apply import RULES, apply
from orchestrator.group.assignor_view import build_view
from orchestrator.group.phases import REBALANCE, Turn
from orchestrator.group.reconcile import reconcile
from orchestrator.group.state import Phase
from orchestrator.group.step import Group
from orchestrator.model import JoinRequest, MemberStatus, Owner, Protocol, Released, Settings, Task, TaskId
from orchestrator.task_assignor.assign import assign_tasks

TASKS = [TaskId(0, partition) for partition in range(4)]


def joined(name: str, session: int, *owned: TaskId) -> ev.Joined:
    return ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), MemberStatus(active=dict.fromkeys(owned, 1)))


def group(protocol: Protocol = Protocol.LEARNER, **more: int) -> Group:
    """S1 owns all tasks; S2 is there and has none."""
    owners = [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS]
    found = Group(Settings(protocol=protocol), map(Task, TASKS), owners, **more)
    found.hold(True)
    found.step(joined("S1", 1, *TASKS), 0)
    found.step(joined("S2", 2), 0)
    return found


def plain(value: Any) -> Any:
    """All that an object holds, as plain containers."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    fields = getattr(value, "__dict__", None) or getattr(value, "__slots__", ())
    if isinstance(value, type) or callable(value) or not fields or not type(value).__module__.startswith("orch"):
        return repr(value) if not isinstance(value, set) else sorted(map(repr, value))
    return {name: plain(getattr(value, name)) for name in fields}


def test_every_change_has_a_rule() -> None:
    changes = [kind for kind in vars(ch).values() if isinstance(kind, type) and issubclass(kind, ch.Change)]
    assert [kind for kind in changes if kind is not ch.Change and kind not in RULES] == []
    with pytest.raises(KeyError, match="Change"):
        apply(ch.Change(), group())


@pytest.mark.parametrize("protocol", list(Protocol))
def test_reconcile_decides_and_changes_nothing(protocol: Protocol) -> None:
    here = group(protocol)
    view = build_view(here)
    target = assign_tasks(view)
    before, generation = plain(here), here.generation
    changes = reconcile(here, view, target, 0)
    assert plain(here) == before
    assert changes == reconcile(here, view, target, 0)
    for change in changes:
        apply(change, here)
    assert here.generation == generation + 1
    assert bool(here.learners) == (protocol is Protocol.LEARNER)
    assert bool(here.moves) == here.barrier == (protocol is not Protocol.LEARNER)


def test_reconcile_of_what_is_agreed_agrees_on_nothing() -> None:
    here = group()
    here.hold(False)
    here.step(ev.Tick(), 0)
    view = build_view(here)
    changes = reconcile(here, view, assign_tasks(view), 0)
    assert changes == [ch.TargetUsed(here.settings.standbys)]


def test_the_phases_of_a_cooperative_rebalance() -> None:
    here = group(Protocol.COOPERATIVE)
    assert here.phase is Phase.HELD
    here.hold(False)
    assert here.phase is Phase.PLANNING
    here.step(ev.Tick(), 0)
    assert here.phase is Phase.BARRIER
    moving = dict.fromkeys(here.moves, Released(1))
    kept = {task: 1 for task in TASKS if task not in moving}
    records = next(
        effect.records
        for effect in here.step(ev.Heartbeat(1, MemberStatus(term=1, active=kept, released=moving)), 1)
        if isinstance(effect, ev.RecordOwners)
    )
    assert here.phase is Phase.PLANNING, "what was released may change where tasks belong"
    here.step(ev.Tick(), 2)
    assert here.phase is Phase.MOVING
    here.step(ev.OwnersRecorded(records), 2)
    assert here.phase is Phase.STABLE


def test_a_fence_interrupts_and_the_rest_goes_on() -> None:
    here = group(long_assignment=0)
    here.hold(False)
    here.step(ev.Tick(), 0)
    assert here.phase is Phase.COMPUTING
    here.step(ev.Expired("S1"), 1)
    assert here.phase is Phase.FENCING
    here.step(ev.Fenced("S1#1", tuple(TASKS)), 2)
    assert here.phase is Phase.COMPUTING, "the answer to the first request is still on its way"


def test_a_target_assignment_is_computed_in_one_phase_alone() -> None:
    assert {phase for (phase, turn), after in REBALANCE.items() if after is Phase.COMPUTING} == {
        *(Phase.PLANNING, Phase.COMPUTING, Phase.BARRIER, Phase.GATHERING, Phase.FENCING, Phase.HELD)
    }
    assert (Phase.STABLE, Turn.MOVES_AGREED) not in REBALANCE, "nothing moves unless it was planned"
