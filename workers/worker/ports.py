"""What the parts of a worker need of it, an interface for each part: Worker is the one implementation of them all.

One rule: a part knows its port and no other part above it, so imports point one way: the parts import this module, and
`worker.py` imports the parts. What a task needs stands in `task.py`, because tasks stand in these interfaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from orchestrator.member.events import MemberEvent
from orchestrator.model import MemberStatus, TaskId
from state.directory import StateDirectory
from state.errors import StateError
from state.log.protocol import Guarantee, MayWrite
from workers.calls.blame import Caution
from workers.calls.call_watch import Turn
from workers.connection.uplink import Watch
from workers.metrics.measures import Measures, Samples
from workers.prepare import Prepared
from workers.tasks.commit import Taken
from workers.tasks.port import Port
from workers.tasks.stores import StoreOpener
from workers.tasks.task import TaskRun
from workers.worker.giving_way import GivingWay
from workers.worker.pulse import Pulse


class WorkerPort(Port, Protocol):
    """What nearly every loop needs beside that: the tasks."""

    @property
    def application(self) -> str: ...
    @property
    def runs(self) -> dict[TaskId, TaskRun]:
        """The tasks that are held."""

    @property
    def pulse(self) -> Pulse: ...


class RecordPort(WorkerPort, Protocol):
    """What the record loop needs: whose transactions it writes, and who is to know what became of them."""

    @property
    def caution(self) -> Caution: ...
    @property
    def prepared(self) -> Prepared: ...
    @property
    def giving_way(self) -> GivingWay: ...
    @property
    def measures(self) -> Measures: ...
    @property
    def transactional_id(self) -> str:
        """Of the present incarnation."""

    def guarantee(self) -> tuple[Guarantee, MayWrite]:
        """How the next commit is made, and for how long its requests may be sent."""

    async def before_commit(self, taken: list[Taken]) -> None:
        """Runs before each try of a transaction."""

    def committed(self, taken: Taken) -> None:
        """The log has what a task added to a commit, and its stores have it, too."""

    def lost(self, runs: tuple[TaskRun, ...], fenced: bool) -> None:
        """The log refused these tasks, or the whole writer."""

    def failed(self, run: TaskRun, error: StateError) -> None:
        """The state of a task failed."""

    def given_up(self, run: TaskRun) -> None:
        """What a task has in memory is not to be committed."""

    def halted(self, run: TaskRun) -> None:
        """A processor stopped, and what was completed before is committed."""

    def overdue(self, turn: Turn) -> None:
        """A sync call lasts longer than it may."""


class RestorePort(WorkerPort, Protocol):
    """What the restore loop needs: who is to know how far a task is, and what copies give way to."""

    @property
    def giving_way(self) -> GivingWay: ...

    def is_ready(self, task: TaskId) -> bool:
        """Whether it is a learner that is ready to take over."""

    def event(self, event: MemberEvent) -> None: ...

    def failed(self, run: TaskRun, error: StateError) -> None:
        """The state of a task failed."""

    @property
    def directory(self) -> StateDirectory: ...

    def level(self, run: TaskRun) -> None:
        """The stores of a task are level with their changelogs."""


class GlobalPort(Port, Protocol):
    """What global tables need: which there are, and when to end."""

    @property
    def prepared(self) -> Prepared: ...
    @property
    def stopping(self) -> asyncio.Event: ...


class SessionPort(WorkerPort, Protocol):
    """What the session needs: what to report to the coordinator, and who is to know what the coordinator sends."""

    @property
    def prepared(self) -> Prepared: ...

    @property
    def commits(self) -> int:
        """How many parts of tasks the log has taken so far."""

    def status(self) -> MemberStatus: ...
    def log_waits(self) -> str:
        """Why calls wait for the log; "" where none does."""

    def notice(self) -> str:
        """What an operator should know of this worker now, a line each."""

    @property
    def long_call(self) -> Watch:
        """What is to be known of a sync call that lasts."""

    def active(self) -> Sequence[TaskRun]:
        """The tasks that process."""

    def event(self, event: MemberEvent) -> None: ...
    def term_began(self, term: int) -> None:
        """A coordinator of this term has accepted the member."""


class GrowthPort(WorkerPort, Protocol):
    """What those need who look for topics that grew."""

    @property
    def prepared(self) -> Prepared: ...

    def topics_grew(self, prepared: Prepared) -> None:
        """Go by these counts from now on."""


class UpkeepPort(WorkerPort, Protocol):
    """What those need who clean up now and then."""

    @property
    def prepared(self) -> Prepared: ...
    @property
    def directory(self) -> StateDirectory: ...
    def active(self) -> Sequence[TaskRun]:
        """The tasks that process."""

    def held(self) -> Sequence[TaskId]:
        """The tasks whose folders are in use."""

    def commit_again(self, run: TaskRun) -> None:
        """Its positions are to be committed with the next commit, moved or not."""

    @property
    def transactional_id(self) -> str: ...
    def guarantee(self) -> tuple[Guarantee, MayWrite]: ...
    def lost(self, runs: tuple[TaskRun, ...], fenced: bool) -> None:
        """The log refused these tasks, or the whole writer."""

    async def scan_disk(self) -> None:
        """Tells the group what state lies here unused."""


class StampPort(WorkerPort, Protocol):
    """What the stamps of the stores need."""

    @property
    def opener(self) -> StoreOpener: ...
    def failed(self, run: TaskRun, error: StateError) -> None:
        """The state of a task failed."""


class HaltPort(WorkerPort, Protocol):
    """What those need who look whether halts were taken back."""

    @property
    def caution(self) -> Caution: ...
    @property
    def halting(self) -> asyncio.Lock:
        """Held by who writes a halt."""


class Commits(Protocol):
    """What makes the commits of a worker: the one that is under way, up to where the stores have what it wrote."""

    commit: asyncio.Task[None] | None


class StoresPort(WorkerPort, Protocol):
    """What those need who look keys up in the stores."""

    def failed(self, run: TaskRun, error: StateError) -> None:
        """The state of a task failed."""

    @property
    def directory(self) -> StateDirectory: ...

    @property
    def member(self) -> str:
        """The name of this worker in the group."""

    def measured(self) -> Samples:
        """Returns what this worker has measured so far, and how its tasks are now."""


class CountedPort(Protocol):
    """What those need who count how the tasks are."""

    @property
    def runs(self) -> dict[TaskId, TaskRun]: ...
    def status(self) -> MemberStatus: ...
    def log_waits(self) -> str: ...
    def log_waits_so_far(self) -> tuple[int, float]:
        """How often calls began to wait for the log, and the seconds of those waits that are over."""
