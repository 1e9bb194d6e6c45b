"""Each rule of invariants.py notices a group that breaks it: a sound group, and one fact that is made wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from orchestrator.errors import InvariantBroken
from orchestrator.group import events as ev
from orchestrator.group.invariants import breaches, check
from orchestrator.group.step import Group
from orchestrator.model import Copy, JoinRequest, MemberStatus, Owner, Released, Role, Settings, Task, TaskId, TaskRange

A, B, OTHER = TaskId(0, 0), TaskId(0, 1), TaskId(7, 0)


def sound() -> Group:
    """S1 owns both tasks, S2 learns one of them, S3 has a standby of the other."""
    settings = Settings(standbys=1, max_learners_per_instance=1, acceptable_recovery_lag=0)
    owners = [Owner(t, 1, "S1", "S1#1", 1) for t in (A, B)]
    group = Group(settings, [Task(A), Task(B)], owners)
    for session, name in enumerate(("S1", "S2", "S3"), 1):
        status = MemberStatus(active={A: 1, B: 1}) if name == "S1" else MemberStatus()
        group.step(ev.Joined(session, JoinRequest(name, name, "1", f"{name}#1"), status), 0)
    assert len(group.learners) == 1 and not breaches(group)
    return group


def sent(group: Group, name: str, **changed: object) -> None:
    member = group.members.by_name[name]
    assert member.sent is not None
    member.sent = replace(member.sent, **changed)  # type: ignore[arg-type]


def granted_twice(group: Group) -> None:
    sent(group, "S2", active={A: 1})


def granted_without_record(group: Group) -> None:
    sent(group, "S2", active={A: 2})


def two_copies(group: Group) -> None:
    member = group.members.by_name["S3"]
    member.join_request = replace(member.join_request, instance="S1")
    group.standbys[A] = ("S3",)


def too_many_standbys(group: Group) -> None:
    group.standbys[A] = ("S2", "S3")


def too_many_learners(group: Group) -> None:
    host = next(iter(group.learners.values()))
    group.learners = dict.fromkeys((A, B), host)


def unknown_task(group: Group) -> None:
    join_request = group.members.by_name["S3"].join_request
    group.members.by_name["S3"].join_request = replace(join_request, tasks=(TaskRange(7, 0, 1),))
    sent(group, "S3", standbys=(A,))


def learner_is_gone(group: Group) -> None:
    group.learners[A] = "S9"


def standby_is_gone(group: Group) -> None:
    group.standbys[A] = ("S9",)


def epochs_do_not_follow(group: Group) -> None:
    group.recording[A] = Owner(A, 3, "S2", "S2#1", 1)


def given_up(group: Group) -> None:
    member = group.members.by_name["S1"]
    member.status = replace(member.status, released={A: Released(1)})


def gone_task(group: Group) -> None:
    group.tasks = {B: Task(B)}


def told_twice(group: Group) -> None:
    group.members.by_name["S3"].join_request = replace(group.members.by_name["S3"].join_request, instance="S1")
    sent(group, "S3", standbys=(A,))


def no_weight(group: Group) -> None:
    group.weights[A] = 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (granted_twice, "which is S1's"),
        (granted_without_record, "without an owner record"),
        (two_copies, "two copies of 0_0 in one instance"),
        (too_many_standbys, "has 2 standbys, 1 are wanted"),
        (too_many_learners, "restores 2 learners, 1 are allowed"),
        (unknown_task, "S3 was given 0_0, which its version of the app does not have"),
        (learner_is_gone, "S9 learns 0_0 and is no member"),
        (standby_is_gone, "S9 keeps a standby of 0_0 and is no member"),
        (epochs_do_not_follow, "epoch 3 of 0_0 is being recorded"),
        (given_up, "S1 is told to run 0_0 at epoch 1, which it has given up"),
        (gone_task, "S1 is told to run 0_0, which no version of the app has any more"),
        (told_twice, "S1 and S3 of one instance are told to hold 0_0"),
        (no_weight, "0_0 weighs 0"),
    ],
)
def test_a_wrong_fact_is_told(wrong: Callable[[Group], None], told: str) -> None:
    group = sound()
    wrong(group)
    assert any(told in sentence for sentence in breaches(group)), breaches(group)
    with pytest.raises(InvariantBroken):
        check(group)


def test_learners_from_before_a_change_of_settings_are_finished() -> None:
    group = sound()
    host = next(iter(group.learners.values()))
    group.learners = dict.fromkeys((A, B), host)
    group.reconsider()
    assert not [b for b in breaches(group) if "learners" in b]
    copies = dict.fromkeys((A, B), Copy(Role.LEARNER, 0, 5))
    group.members.by_name[host].status = MemberStatus(copies=copies)
    assert not [b for b in breaches(group) if "learners" in b]
