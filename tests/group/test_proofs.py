"""Proofs of release, in the member and in what it is asked: each answers one epoch, and lasts until it is not needed."""

from __future__ import annotations

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.model import (
    Assignment,
    Ending,
    JoinRequest,
    MemberStatus,
    Owner,
    Released,
    Settings,
    Task,
    TaskId,
)

T = TaskId(0, 0)


def machine() -> MemberMachine:
    """It ran T at epoch 1 and lost it."""
    found = MemberMachine(Settings())
    found.step(mem.Assigned(Assignment(1, 1, active={T: 1})), 0)
    found.step(mem.Started(T), 0)
    found.step(mem.Dropped(frozenset({T})), 0)
    assert found.status().released == {T: Released(1)}
    return found


def test_an_epoch_that_was_given_up_never_runs_again() -> None:
    member = machine()
    assert mem.Open(T, mem.Role.ACTIVE, 1) not in member.step(mem.Assigned(Assignment(1, 1, active={T: 1})), 0)
    assert not member.held
    member.step(mem.Assigned(Assignment(2, 1, active={T: 2})), 0)
    assert member.held[T].epoch == 2


def test_an_older_proof_does_not_answer_a_newer_release() -> None:
    """The task was recorded as its own again, at epoch 2, and taken back before it heard of that."""
    member = machine()
    member.step(mem.Assigned(Assignment(2, 1, release={T: 2})), 0)
    assert member.status().released == {T: Released(2)}


def test_a_proof_is_asked_for_until_the_log_has_another_owner() -> None:
    """While a fence holds up every plan, and while the new record is on its way into the log."""
    group = Group(Settings(), [Task(T)], [Owner(T, 1, "S1", "S1#1", 1), Owner(TaskId(9, 9), 1, "S3", "S3#1", 1)])
    for session, name in enumerate(("S1", "S2", "S3"), 1):
        active = {T: 1} if name == "S1" else {}
        group.step(ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), MemberStatus(active=active)), 0)
    group.step(ev.Expired("S3"), 100)
    effects = group.step(ev.Heartbeat(1, MemberStatus(term=1, released={T: Released(1)})), 200)
    asked = [e.assignment.release for e in effects if isinstance(e, ev.Send) and e.session == 1]
    assert asked == [{T: 1}], "nothing is planned until S3 is fenced"
    effects = group.step(ev.Fenced("S3#1", (TaskId(9, 9),)), 300)
    assert any(isinstance(e, ev.RecordOwners) for e in effects)
    sent = group.members.by_name["S1"].sent
    assert sent is not None and sent.release == {T: 1}, "the record is not in the log yet"


def test_an_assignment_of_a_lower_term_is_dropped() -> None:
    """Whoever was the coordinator before may still speak; the member has seen the term of the one after it."""
    found = MemberMachine(Settings())
    found.step(mem.Assigned(Assignment(1, 2, active={T: 1})), 0)
    assert found.step(mem.Assigned(Assignment(9, 1)), 0) == [] and found.held[T].epoch == 1
    found.step(mem.SessionOpened(3), 0)
    assert found.step(mem.Assigned(Assignment(9, 2)), 0) == [] and found.held[T].epoch == 1
    assert found.step(mem.Assigned(Assignment(2, 3)), 0), "of the highest one it is obeyed"
    assert not found.held


def test_where_the_owner_before_ended_counts_once_in_an_epoch() -> None:
    """An epoch that was lost and is granted again has committed since."""
    found, ending = MemberMachine(Settings()), Ending((("payments", 0, 70),), ())
    grant = Assignment(1, 1, active={T: 2}, endings={T: ending})
    assert mem.Open(T, mem.Role.ACTIVE, 2, ending) in found.step(mem.Assigned(grant), 0)
    found.step(mem.Assigned(Assignment(1, 1)), 0)
    assert mem.Open(T, mem.Role.ACTIVE, 2) in found.step(mem.Assigned(grant), 0)
