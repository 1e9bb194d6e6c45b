"""The words of the group as types: tasks, members, copies, assignments, settings.

One rule: plain values only; nothing here decides anything. Everything in orchestrator/ builds on this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from orchestrator.durations import parse_duration_ms
from orchestrator.setting import (
    COPIES,
    LEARNERS,
    TABLES,
    natural_number,
    row,
    some_time,
    whole_number,
)

COUNT_MAX = 1 << 53  # of whatever is counted: exact in every language's numbers
EXACTLY_ONCE = "exactly-once"
FIRST_DELAY_MS = 700  # a new group waits this long for its members before it assigns tasks, unless all are there
TASKS_MAX = 1_000_000  # of a group, and of what a message names


class TaskId(NamedTuple):
    """A unit of assignment: one partition of one subtopology; prints as `0_3`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """`0_3` -> TaskId(0, 3). Raises ValueError."""
        subtopology, _, partition = text.partition("_")
        return cls(int(subtopology), int(partition))


class Role(StrEnum):
    """The role in which a member holds a task."""

    ACTIVE = "active"
    LEARNER = "learner"
    STANDBY = "standby"


class Protocol(StrEnum):
    """How tasks change hands, worst to best; a group uses the best one that every member supports."""

    EAGER = "eager"
    COOPERATIVE = "cooperative"
    LEARNER = "learner"


PROTOCOL_ORDER: tuple[Protocol, ...] = (Protocol.EAGER, Protocol.COOPERATIVE, Protocol.LEARNER)


def up_to(protocol: Protocol) -> tuple[Protocol, ...]:
    """What a member announces that is configured for `protocol`: a group changes to a better one with its last member."""
    return PROTOCOL_ORDER[: PROTOCOL_ORDER.index(protocol) + 1]


class Task(msgspec.Struct, frozen=True):
    """What is known of a task beside its id. `weight` is its share of load; `state_bytes` 0 where unknown."""

    id: TaskId
    stateful: bool = True
    weight: int = 1
    state_bytes: int = 0


class TaskRange(NamedTuple):
    """`partitions` of one subtopology, from `first` on, that a version of the app has."""

    subtopology: int
    first: int
    partitions: int
    stateful: bool = True
    weight: int = 1


class Owner(msgspec.Struct, frozen=True):
    """An owner record as the log holds it. `writer` "" means that the task has no owner."""

    task: TaskId
    epoch: int
    member: str
    writer: str
    term: int

    def without_writer(self, term: int) -> Owner:
        """Returns the record that follows where a writer is fenced, or where the task has no owner any more."""
        return Owner(self.task, self.epoch + 1, self.member, "", term)


class Copy(msgspec.Struct, frozen=True):
    """A copy of a task's state as its holder reports it. Positions are sums over the task's changelogs.

    `ready` is the holder's own announcement (learners); `eta_ms` the time until it is level, where that is known;
    `end_known`: the holder has seen how far there is to go, which may be nothing at all. `read`: bytes of a snapshot that it has
    read so far, which is progress of which the position says little.
    """

    role: Role
    position: int = 0
    end: int = 0
    ready: bool = False
    eta_ms: int | None = None
    end_known: bool = False
    read: int = 0

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position)


class Ending(NamedTuple):
    """Where an owner that released a task ended: the committed positions of its inputs and the ends of its changelogs, each as
    (topic, partition, offset); `last_ms`: its last commit, or the one that it began with (wall ms; 0: not known). The next owner goes on
    from there without a word of the log, which only the epoch after this release may do: nobody writes in between."""

    inputs: tuple[tuple[str, int, int], ...]
    changelogs: tuple[tuple[str, int, int], ...]
    last_ms: int = 0


class Released(msgspec.Struct, frozen=True):
    """Proof that an owner gave up a task: the epoch it held; the wall times in ms of its last commit of records
    (0: none) and of the moment it stopped (0: it never ran it); and where it ended, if it ran it and can say so."""

    epoch: int
    last_ms: int = 0
    stopped_ms: int = 0
    ending: Ending | None = None


class ProcessingStarted(msgspec.Struct, frozen=True):
    """When an owner began with a task at an epoch, and its first commit of records (0: none yet); wall ms. `from_ms`: the
    last commit before it, as the log has it (0: not known). `awaited`: there was input to read when it began."""

    epoch: int
    began_ms: int
    first_ms: int = 0
    from_ms: int = 0
    awaited: bool = False


class TaskFacts(NamedTuple):
    """What an owner measures of a task: records that wait, bytes of its state, records processed in this epoch, and its
    longest pause between two commits, in ms."""

    input_lag: int
    state_bytes: int
    records: int
    pause_max_ms: int


class MemberStatus(msgspec.Struct, frozen=True):
    """Everything a member says of itself, whole, with every heartbeat (level-triggered).

    `active`: task -> epoch, running or starting; `copies`: learners and standbys; `disk`: task -> position of state
    that lies there unused; `released`: proofs for releases, kept until the assignment that answers them; `facts`: TaskFacts of the
    active tasks; `weights` of active tasks as measured, where they are not 1; `notice`: what an
    operator should know of this worker, a line each: it waits for the log, a call lasts. `log_away`: it waits for the log.
    """

    generation: int = 0
    term: int = 0  # the highest seen; 0 says that the member is new to the group
    active: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    copies: Mapping[TaskId, Copy] = msgspec.field(default_factory=dict)
    disk: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    released: Mapping[TaskId, Released] = msgspec.field(default_factory=dict)
    ends: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    started: Mapping[TaskId, ProcessingStarted] = msgspec.field(default_factory=dict)
    facts: Mapping[TaskId, tuple[int, int, int, int]] = msgspec.field(default_factory=dict)
    weights: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    leaving: bool = False
    bounce: bool = False
    notice: str = ""
    log_away: bool = False

    def facts_of(self, task: TaskId) -> TaskFacts | None:
        """What is known of an active task; None before it was measured."""
        found = self.facts.get(task)  # columns of the wire make plain tuples
        return None if found is None else TaskFacts(*found)


class JoinRequest(msgspec.Struct, frozen=True):
    """How a worker introduces itself. `member` = instance id + worker number; `incarnation` is new at each process
    start, and `writer` (the transactional id) is made of both and never used again. `tasks` is what its version of the
    app has; None: the same as the coordinator's own. `address`: where its instance answers queries. `guarantee`: of its version of the
    app; one of at least once gets each of its heartbeats answered. `instance_incarnation`: new at each start of its instance
    by its user; "" of versions that announce none. `app_version` and `package_version` name its code to people, and decide nothing."""

    member: str
    instance: str
    incarnation: str
    writer: str
    capacity: int = 1
    zone: str = ""
    host: str = ""
    pid: int = 0
    protocols: tuple[Protocol, ...] = PROTOCOL_ORDER
    tasks: tuple[TaskRange, ...] | None = None
    address: str = ""
    guarantee: str = EXACTLY_ONCE
    instance_incarnation: str = ""
    app_version: str = ""
    package_version: str = ""


class Assignment(msgspec.Struct, frozen=True):
    """What a member should hold now, whole. Obeyed only if `term` is the highest the member has seen.

    `active` carries the epoch that the owner record was written with; `release` names tasks (with that epoch) whose
    release the member must prove, also when it does not hold them; a task it runs that is in neither is lost.
    `shutdown` tells a leaver that nothing is left on it. `weights`: what its active tasks weighed so far, where not 1.
    `endings`: where the owner before of an active task ended, as long as the member has not begun with it.
    """

    generation: int
    term: int
    active: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    release: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    learners: tuple[TaskId, ...] = ()
    standbys: tuple[TaskId, ...] = ()
    protocol: Protocol = Protocol.LEARNER
    leaving: bool = False
    shutdown: bool = False
    weights: Mapping[TaskId, int] = msgspec.field(default_factory=dict)
    endings: Mapping[TaskId, Ending] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """The group's settings, each with its row (see setting.py); defaults and meanings are those of the safety page.
    All times in ms."""

    protocol: Annotated[
        Protocol,
        row(
            "protocol",
            "how tasks change hands: eager, cooperative or learner",
            choices=tuple(p.value for p in Protocol),
        ),
    ] = Protocol.LEARNER
    ready: Annotated[
        str,
        row(
            "ready",
            "when a learner takes over: eager or conservative",
            choices=("eager", "conservative"),
            need=LEARNERS,
        ),
    ] = "eager"
    standbys: Annotated[int, row("standbys", "standby copies of each task", natural_number, need=TABLES)] = 0
    weights: Annotated[
        str,
        row(
            "weights",
            "what a task weighs: given (1, or --task-weights), or measured by rate (records) or bytes (of state)",
            choices=("given", "rate", "bytes"),
        ),
    ] = "given"
    balancing_factor: Annotated[
        int, row("balancing-factor", "a task moves when its host stays above by more than so many", whole_number)
    ] = 1
    heartbeat_ms: Annotated[int, row("heartbeat", "time between heartbeats", some_time)] = 1_000
    session_timeout_ms: Annotated[int, row("session-timeout", "silence after which a member is dead", some_time)] = (
        10_000
    )
    disconnect_grace_ms: Annotated[
        int, row("disconnect-grace", "wait before warm copies take over", parse_duration_ms)
    ] = 1_000
    rejoin_grace_ms: Annotated[
        int, row("rejoin-grace", "how long a new coordinator waits for owners to come back", parse_duration_ms)
    ] = 5_000
    release_timeout_ms: Annotated[
        int, row("release-timeout", "time to release a task, after which an owner that is silent is fenced", some_time)
    ] = 10_000
    learner_timeout_ms: Annotated[
        int,
        row(
            "learner-timeout",
            "time without progress after which a learner is given up",
            some_time,
            need=LEARNERS,
        ),
    ] = 60_000
    initial_delay_ms: Annotated[
        int,
        row(
            "initial-delay",
            "how long a new group waits for more members to join",
            parse_duration_ms,
            least=FIRST_DELAY_MS,
        ),
    ] = 0
    max_learners_per_instance: Annotated[
        int,
        row("max-learners", "learners that restore at one time, an instance", whole_number, need=COPIES),
    ] = 2
    acceptable_recovery_lag: Annotated[
        int, row("acceptable-recovery-lag", "how far a copy may be behind to be ready", natural_number)
    ] = 10_000
    acceptable_recovery_time_ms: Annotated[
        int,
        row(
            "acceptable-recovery-time",
            "or, where it comes no closer, the longest pause to take over with",
            parse_duration_ms,
            need=LEARNERS,
        ),
    ] = 10_000
    check_invariants: bool = False

    @property
    def three_heartbeats_ms(self) -> int:
        """So many that did not come are silence."""
        return 3 * self.heartbeat_ms

    @property
    def patience_ms(self) -> int:
        """No member is taken for silent sooner than this after its last heartbeat, by this coordinator or the next."""
        soonest = min(self.disconnect_grace_ms, self.three_heartbeats_ms, self.rejoin_grace_ms)
        return min(soonest, self.session_timeout_ms)

    @property
    def gathering_ms(self) -> int:
        """How long at most a new coordinator waits for those who were here before it and have no tasks. A worker finds out
        within a heartbeat, and is there with the next."""
        return min(2 * self.heartbeat_ms, self.rejoin_grace_ms)
