"""What the task assignor reads, and what it returns: plain values. The assignor is task_assignor/assign.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.model import Protocol, Settings, Task, TaskId

STEP = 1_000  # tasks between two pauses of the task assignor: about a millisecond
FAR = 1 << 60  # a lag beyond any: of a copy whose end is unknown
Ranked = tuple[float, int, str]  # how full a host is, its place by name, the host


@dataclass(frozen=True, slots=True)
class MemberView:
    """A live member as the assignor sees it. `knows`: the tasks that its version of the app has; None for all."""

    name: str
    instance: str
    capacity: int = 1
    zone: str = ""
    leaving: bool = False
    knows: frozenset[TaskId] | None = None


@dataclass(frozen=True, slots=True)
class LearnerView:
    """A current learner; `ready` as announced by its worker."""

    member: str
    ready: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """All that the task assignor reads. Copies are named by member, state on disk by instance, with their lag.

    `active` holds effective owners (a move under way counts for its target); `reserved` are tasks of silent members
    that are kept for them; `former` the last owner of a task without an owner; `given_up` (task, instance) pairs whose
    learner made no progress; `moving` tasks are on their way to their effective owner; `silent` members cannot be reached
    at the moment: they keep what they have, get nothing to learn, and of tasks without an owner only those of which nobody
    else has a copy.
    """

    tasks: Mapping[TaskId, Task]
    members: Mapping[str, MemberView]
    active: Mapping[TaskId, str] = field(default_factory=dict)
    learners: Mapping[TaskId, LearnerView] = field(default_factory=dict)
    learner_lags: Mapping[TaskId, int] = field(default_factory=dict)
    standbys: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    disk: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    reserved: frozenset[TaskId] = frozenset()
    former: Mapping[TaskId, str] = field(default_factory=dict)
    given_up: frozenset[tuple[TaskId, str]] = frozenset()
    moving: frozenset[TaskId] = frozenset()
    silent: frozenset[str] = frozenset()
    protocol: Protocol = Protocol.LEARNER
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """Who should hold what: one owner per placed task, at most one learner, standbys. All tasks whose owner may not be
    the one of the view are in `reassigned`."""

    active: Mapping[TaskId, str]
    learners: Mapping[TaskId, str]
    standbys: Mapping[TaskId, tuple[str, ...]]
    reassigned: frozenset[TaskId] = frozenset()
