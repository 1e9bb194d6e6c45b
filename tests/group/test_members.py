"""The members of a large group: what is kept beside them says the same as they do, and costs as little with more."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.group import events as ev
from orchestrator.group.members import Member, Members
from orchestrator.model import Assignment, Copy, JoinRequest, MemberStatus, Role, TaskId, TaskRange
from orchestrator.simulator.coordinator import Coordinator
from orchestrator.simulator.round import Counted, Round

VERSIONS = (None, (TaskRange(0, 0, 4),), (TaskRange(0, 0, 4), TaskRange(1, 0, 2)))
NAMES = ("A", "B", "C", "D")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(("join", "leave", "say leaving", "shut down", "stay", "go")),
            st.sampled_from(VERSIONS),
        )
    )
)
@settings(deadline=None)
def test_versions_are_those_of_who_stays_or_else_of_everybody(steps: list[tuple[str, str, Any]]) -> None:
    members = Members()
    for number, (name, what, version) in enumerate(steps):
        known = members.get(name)
        if what == "join":
            if known is not None:
                members.remove(known)
            join_request = JoinRequest(name, name, f"{name}{number}", f"{name}{number}", tasks=version)
            members.bind(Member(join_request, None, MemberStatus(), number), number)
        elif known is None:
            continue
        elif what == "go":
            members.remove(known)
        elif what == "say leaving":
            members.report(known, MemberStatus(leaving=True))
        else:
            known.mark(what == "leave")
            known.shut_down = what == "shut down"
        staying = {m.join_request.tasks for m in members if not m.is_leaving and not m.shut_down}
        assert set(members.versions()) == (staying or {m.join_request.tasks for m in members})
        assert len(members.versions()) == len(set(members.versions()))


def test_what_was_ready_before_it_was_closed_is_believed_no_more() -> None:
    task, other = TaskId(0, 0), TaskId(0, 1)
    ready = {task: Copy(Role.LEARNER, 9, 9, ready=True), other: Copy(Role.LEARNER, 9, 9, ready=True)}
    said = MemberStatus(generation=5, copies=ready)
    member = Member(JoinRequest("A", "A", "A1", "A1"), 1, said, 0)
    member.record_sent(Assignment(6, 1, learners=(other,)))
    assert not member.status.copies[task].ready and member.status.copies[other].ready
    member.record_sent(Assignment(7, 1, learners=(task, other)))  # wanted again: it is opened anew
    assert not member.believed(said).copies[task].ready, "said before it obeyed"
    assert member.believed(replace(said, generation=7)).copies[task].ready


class Calls(Counted):
    """How many functions the step calls that takes the event before the last of `events`."""

    def __init__(self, events: int) -> None:
        super().__init__()
        self.left = events
        self.calls = 0

    def before(self, coordinator: Coordinator) -> None:
        self.left -= 1
        if self.left == 1:
            sys.setprofile(self._count)

    def stepped(self, coordinator: Coordinator, event: ev.Event) -> None:
        sys.setprofile(None)

    def _count(self, frame: object, what: str, arg: object) -> None:
        self.calls += what == "call"


def calls_of_one(members: int) -> int:
    """How many functions are called when the last but one of a group comes back to a new coordinator."""
    watch = Calls(members)
    made = Round(members, members * 10, at_rest=True, watch=watch)
    made.run()
    return watch.calls


def test_a_member_that_comes_back_costs_the_same_in_a_large_group() -> None:
    few, many = calls_of_one(40), calls_of_one(400)
    assert many < few + 40, f"{few} calls among 40 members, {many} among 400"
