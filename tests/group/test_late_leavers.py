"""A leaver that stands still while its scale-down ends. Law: who was to leave leaves when it comes back, however late; what was
taken back, or started again, stays."""

from __future__ import annotations

import pytest

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator.operation_facts import left_by, operation_facts, resumed, taken_back
from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.model import Assignment, JoinRequest, MemberStatus, Owner, Settings, Task, TaskId

SETTINGS = Settings()
LEFT = ev.OperationEnded("down", "done")


def join_request(name: str, incarnation: str, writer: str = "") -> JoinRequest:
    return JoinRequest(name, name, writer or incarnation, writer or incarnation, instance_incarnation=incarnation)


class Life:
    """Two instances, of which the second is marked, and then stands still until it is fenced."""

    def __init__(self) -> None:
        self.group = Group(SETTINGS, [Task(TaskId(0, 0))])
        self.now = 0
        self.hear(ev.Joined(1, join_request("S1", "one"), MemberStatus()))
        self.hear(ev.Joined(2, join_request("S2", "two"), MemberStatus()))
        self.hear(ev.Leaving("down", ("S2",)))

    def hear(self, event: ev.Event) -> list[ev.Effect]:
        effects = list(self.group.step(event, self.now))
        for effect in effects:
            if isinstance(effect, ev.Fence):
                effects += self.hear(ev.Fenced(effect.transactional_id, ()))
        return effects

    def silent(self) -> list[ev.Effect]:
        """S1 goes on until S2 is fenced."""
        effects = []
        for _ in range(2 * SETTINGS.session_timeout_ms // SETTINGS.heartbeat_ms):
            self.now += SETTINGS.heartbeat_ms
            effects += self.hear(ev.Heartbeat(1, MemberStatus()))
            effects += self.hear(ev.Tick())
        return effects

    def back(self, incarnation: str) -> Assignment:
        """What S2 is sent when it joins again, as the same process under another id, or started again."""
        effects = self.hear(ev.Joined(3, join_request("S2", incarnation, "again"), MemberStatus(term=1)))
        return [e.assignment for e in effects if isinstance(e, ev.Send) and e.session == 3][-1]


@pytest.mark.parametrize(("incarnation", "leaves"), [("two", True), ("three", False), ("", False)])
def test_one_that_comes_back_when_it_is_done_leaves(incarnation: str, leaves: bool) -> None:
    life = Life()
    assert LEFT in life.silent() and len(life.group.members) == 1
    sent = life.back(incarnation)
    assert (sent.leaving, sent.shutdown) == (leaves, leaves)


def test_one_that_is_fenced_before_it_is_taken_back_stays() -> None:
    life = Life()
    life.hear(ev.Joined(4, join_request("S3", "last"), MemberStatus()))
    life.hear(ev.Leaving("down", ("S2", "S3")))
    for _ in range(2 * SETTINGS.session_timeout_ms // SETTINGS.heartbeat_ms):
        life.now += SETTINGS.heartbeat_ms
        for session in (1, 4):
            life.hear(ev.Heartbeat(session, MemberStatus()))
        life.hear(ev.Tick())
    assert life.group.operations and "S2" not in life.group.members.by_name
    life.hear(ev.UndoLeaving())
    assert not life.back("two").leaving


def test_the_next_coordinator_knows_it_though_it_never_joined_there() -> None:
    life = Life()
    answer = {"plan": "down", "from": 2, "to": 1, "leaving": ["S2"], "staying": ["S1"], "since": 0, "term": 1}
    facts = operation_facts(life.group, answer, "", None, timeout_ms=None, force=False)
    life.group = Group(SETTINGS, [Task(TaskId(0, 0))], [Owner(TaskId(0, 0), 1, "S1", "one", 1)], term=2, gathering=True)
    life.hear(resumed(facts, 0))
    life.hear(ev.Joined(1, join_request("S1", "one"), MemberStatus(active={TaskId(0, 0): 1}, term=1)))
    assert LEFT in life.silent()
    assert life.back("two").leaving


@pytest.mark.parametrize(
    ("wall_ms", "left_ms"), [(1_000_000, 20_000), (1_015_000, 5_000), (1_000_000 - 3_600_000, 20_000)]
)
async def test_no_clock_gives_leavers_longer_than_they_were_given(wall_ms: int, left_ms: int) -> None:
    """A next coordinator whose clock was an hour behind gave them that hour more."""
    answer = {"plan": "down", "from": 2, "to": 1, "leaving": ["S2"], "staying": ["S1"], "since": 0, "term": 1}
    facts = operation_facts(Life().group, answer, "", 1_020_000, timeout_ms=20_000, force=False)
    before = monotonic_ms()
    deadline_ms = resumed(facts, wall_ms).deadline_ms
    assert deadline_ms is not None and before + left_ms <= deadline_ms <= monotonic_ms() + left_ms


def over(life: Life, before: dict[str, str]) -> dict[str, str]:
    """What the log is to have of leavers once the scale-down is over."""
    return left_by({"leaving": ["S2"]}, before, life.group.leavers)


@pytest.mark.parametrize(("incarnation", "leaves"), [("two", True), ("three", False)])
def test_the_next_coordinator_knows_it_also_once_its_scale_down_is_over(incarnation: str, leaves: bool) -> None:
    life = Life()
    life.silent()
    kept = over(life, {"S9": "an older one's"})
    assert kept == {"S2": "two"}, "what the group has forgotten goes"
    life.group = Group(SETTINGS, [Task(TaskId(0, 0))], term=2, leavers=kept)
    life.hear(ev.Joined(1, join_request("S1", "one"), MemberStatus(term=1)))
    sent = life.back(incarnation)
    assert (sent.leaving, sent.shutdown) == (leaves, leaves)


def test_what_was_taken_back_is_not_kept() -> None:
    life = Life()
    life.hear(ev.UndoLeaving())
    assert over(life, {"S2": "two"}) == {}


def test_who_left_by_one_and_stays_by_the_undo_of_another_stays() -> None:
    """The log kept it, and the next coordinator sent it away."""
    assert taken_back([{"leaving": ["S2", "S3"]}], {"S2": "two", "S9": "nine"}) == {"S9": "nine"}
