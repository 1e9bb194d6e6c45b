"""A coordinator of a simulated cluster: the real group core under one term, and how its effects are carried out.

One rule: a coordinator reaches members through the network, and the ledger through its backend, and nothing else; once
the ledger has refused it, it does nothing more. Who looks on (judges, measures) does so as a Watch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from msgspec.structs import replace

from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.member import events as mem
from orchestrator.model import TaskId
from orchestrator.simulator.ledger import Ledger, Refused
from orchestrator.simulator.processes import Process
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import TargetAssignment, View

Had = tuple[TaskId, ...] | None  # what a write answers: the tasks of who was fenced


class Downlink(Protocol):
    """What a coordinator needs of the network."""

    def down(self, session: int, event: mem.MemberEvent, /) -> None:
        """Delivers the event to the member of the session, in its time."""

    def close(self, session: int, fenced: bool, /) -> None:
        """Ends a session of the coordinator; a fenced writer receives that as the reason."""


class Watch:
    """Looks on at every step of every coordinator; this one sees nothing."""

    def before(self, coordinator: Coordinator) -> None:
        """An event is about to be taken."""

    def stepped(self, coordinator: Coordinator, event: ev.Event) -> None:
        """The group has taken it, and nothing has followed yet."""

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        """This is about to be carried out."""

    def after(self, coordinator: Coordinator) -> None:
        """All that followed is carried out."""

    def lost_lease(self, coordinator: Coordinator) -> None:
        """The ledger has refused it."""


class Backend:
    """What is behind a coordinator: the log and the assignor process. Here a write is done at once and answered after
    `log_ms`, and a plan is there as soon as it is asked for."""

    def __init__(self, log_ms: int = 0) -> None:
        self.log_ms = log_ms

    def write(self, coordinator: Coordinator, operation: Callable[[], Had], answer: Callable[[Had], ev.Event]) -> None:
        """Writes; the coordinator gets the answer, or steps down where the ledger refuses it."""
        try:
            result = operation()
        except Refused:
            coordinator.step_down()
            return
        coordinator.process.after(self.log_ms, lambda: coordinator.receive(answer(result)))

    def assign(self, view: View) -> TargetAssignment:
        """What the assignor process answers."""
        return assign_tasks(view)

    def assignment_ms(self) -> int:
        """How long the next answer of it takes."""
        return 0


@final
class Coordinator:
    """One term of office. `in_office`: it takes itself for the coordinator, which only the ledger knows."""

    def __init__(
        self, process: Process, group: Group, ledger: Ledger, network: Downlink, backend: Backend, watch: Watch
    ) -> None:
        self.process = process
        self.group = group
        self.ledger = ledger
        self.network = network
        self.backend = backend
        self.watch = watch
        self.in_office = True

    @property
    def term(self) -> int:
        return self.group.term

    def clock(self) -> int:
        return self.process.clock()

    def receive(self, event: ev.Event) -> None:
        """Give the core an event and carry out what it wants."""
        if not self.in_office:
            return
        now_ms = self.clock()
        self.watch.before(self)
        effects = self.group.step(event, now_ms)
        self.watch.stepped(self, event)
        for effect in effects:
            if self.in_office:
                self.watch.effect(self, effect)
                self._act(effect)
        self.watch.after(self)

    def _act(self, effect: ev.Effect) -> None:
        ledger, term = self.ledger, self.term
        match effect:
            case ev.Send(session, assignment):
                self.network.down(session, mem.Assigned(assignment))
            case ev.CloseSession(session, fenced):
                self.network.close(session, fenced)
            case ev.RecordOwners(records):
                self.backend.write(self, lambda: ledger.record(term, records), lambda _: ev.OwnersRecorded(records))
            case ev.Fence(writer):
                self.backend.write(self, lambda: ledger.fence(term, writer), lambda had: ev.Fenced(writer, had or ()))
            case ev.ComputeTarget():
                self.process.after(self.backend.assignment_ms(), lambda: self._assign(effect))
            case ev.OperationEnded(operation):
                self._end_operation(operation)
            case ev.Announced() | ev.HandedOver():
                pass

    def _assign(self, wanted: ev.ComputeTarget) -> None:
        if self.in_office:
            self.receive(ev.TargetComputed(wanted.number, self.backend.assign(wanted.view)))

    def _end_operation(self, operation: str) -> None:
        try:
            self.ledger.end_operation(self.term, operation)
        except Refused:
            self.step_down()

    def resume_operations(self) -> None:
        """The scale-downs that run go on under this term."""
        for operation in [*self.ledger.operations.values()]:
            self.receive(replace(operation, resumed=True))

    def step_down(self) -> None:
        """It was refused: it stops at once."""
        self.in_office = False
        self.watch.lost_lease(self)
