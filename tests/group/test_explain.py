"""Sentences about moments that a scenario does not stop at: between an effect and its answer, and in an empty group."""

from __future__ import annotations

from orchestrator import events as ev
from orchestrator.explain import explain_task
from orchestrator.group import Group
from orchestrator.model import Hello, Owner, Settings, Status, Task, TaskId

T0, T1 = TaskId(0, 0), TaskId(0, 1)


def group(*members: str) -> Group:
    """S1 owns both tasks, and is in the group if it is named."""
    owners = [Owner(t, 1, "S1", "S1#1", 1) for t in (T0, T1)]
    found = Group(Settings(balancing_factor=9), [Task(T0), Task(T1)], owners)
    for session, name in enumerate(members, 1):
        active = {T0: 1, T1: 1} if name == "S1" else {}
        found.step(ev.Joined(session, Hello(name, name, "1", f"{name}#1"), Status(active=active)), 0)
    return found


def test_a_fence_under_way() -> None:
    here = group("S1", "S2")
    here.step(ev.Expired("S1"), 100)
    why, waiting = explain_task(here, T0)
    assert why == ["0_0 is active on S1 since epoch 1"]
    assert waiting == ["0_0 waits for the log to fence S1; until then nobody else may run it"]


def test_a_record_under_way() -> None:
    here = group("S1", "S2")
    here.step(ev.Expired("S1"), 100)
    here.step(ev.WriterFenced("S1#1", (T0, T1)), 200)
    why, waiting = explain_task(here, T0)
    assert why == ["0_0 has no owner: S1, its last one, was fenced at epoch 1"]
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
        here.step(ev.Joined(session, Hello(name, name, "1", f"{name}#1"), Status(active={task: 1})), 0)
    here.step(ev.Expired("S1"), 100)
    _, waiting = explain_task(here, T1)
    assert waiting == ["nothing is planned until the log has fenced S1"]


def test_a_bounce_was_announced() -> None:
    here = group("S1", "S2")
    here.step(ev.Heartbeat(1, Status(active={T0: 1, T1: 1}, term=1, bounce=True)), 500)
    here.step(ev.SessionEnded(1), 600)
    for now in range(1_000, 4_601, 100):
        here.step(ev.Tick(), now)
        here.step(ev.Heartbeat(2, Status(term=1)), now)
    _, waiting = explain_task(here, T0)
    assert waiting == [
        "0_0 is kept for S1, which has been silent for 4.0 s, for another 6.0 s (session_timeout): it announced a bounce"
    ]
