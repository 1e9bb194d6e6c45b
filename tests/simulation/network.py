"""Connections of the simulation: ordered each, with delays of their own; they break, and one direction may be deaf.

One rule: within a connection nothing is reordered or skipped; a loss is the end of the connection. Between connections
there is no order: what lingers of one may arrive after the next has spoken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.coordinator.heartbeat_delta import DeltaDecoder, DeltaEncoder
from orchestrator.coordinator.messages import FullStatus, StatusDelta
from orchestrator.group import events as ev
from orchestrator.member import events as mem
from orchestrator.model import MemberStatus, Protocol

if TYPE_CHECKING:
    from tests.simulation.nodes import Candidate, Worker
    from tests.simulation.world import World


@dataclass
class Link:
    """One connection: both directions keep their order by never delivering before what was sent earlier."""

    worker: Worker
    candidate: Candidate
    term: int
    up_at: int = 0
    down_at: int = 0
    open: bool = True
    deaf_up: bool = False
    deaf_down: bool = False
    lingers: bool = False  # what was sent before its end arrives all the same
    speaker: DeltaEncoder = field(default_factory=lambda: DeltaEncoder(MemberStatus()))
    listener: DeltaDecoder = field(default_factory=DeltaDecoder)


def said(link: Link, event: ev.Event) -> FullStatus | StatusDelta | None:
    """What a worker sends of its status: whole at first, then what changed, if its version is a new one."""
    if isinstance(event, ev.Joined):
        link.speaker = DeltaEncoder(event.status)
        link.speaker.changes = Protocol.LEARNER in link.worker.protocols
        return FullStatus(event.status)
    return link.speaker.say(event.status) if isinstance(event, ev.Heartbeat) else None


class Network:
    """All links of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.links: dict[int, Link] = {}
        self.sessions = 0

    def delay(self, worker: Worker) -> int:
        return worker.random.randrange(1, self.world.plan.delay_max)

    def join(self, worker: Worker) -> None:
        """Connect to whoever the lease names, as far as it runs."""
        candidate = self.world.holder()
        old = [c for c in self.world.candidates if c.group is not None and c.process.alive]
        if self.world.faulty and old and worker.random.random() < 0.1:
            candidate = worker.random.choice(old)  # the lease was read before it changed hands
        if candidate is None or worker.member in self.world.cut:
            return
        self.sessions += 1
        session = self.sessions
        worker.session = session
        self.links[session] = Link(worker, candidate, candidate.term)
        worker.highest = max(worker.highest, candidate.term)
        worker.machine.step(mem.SessionOpened(candidate.term), worker.clock())
        self.up(worker, ev.Joined(session, worker.join_request, worker.machine.status()))

    def up(self, worker: Worker, event: ev.Event) -> None:
        session = worker.session
        link = self.links.get(session) if session is not None else None
        if link is None or not link.open or link.deaf_up:
            return
        link.up_at = max(link.up_at, self.world.now + self.delay(worker))
        writer = worker.join_request.writer
        message = said(link, event)

        def deliver() -> None:
            status = link.listener.decode(message) if message is not None else None
            if (link.open or link.lingers) and link.candidate.term == link.term:
                self.world.judges.heard_from(link.candidate, writer)
                link.candidate.hear(replace(event, status=status) if isinstance(event, ev.Heartbeat) else event)

        self.world.on(link.candidate.process, link.up_at - self.world.now, deliver)

    def down(self, candidate: Candidate, session: int, event: mem.MemberEvent) -> None:
        link = self.links.get(session)
        if link is None or not link.open or link.deaf_down:
            return
        link.down_at = max(link.down_at, self.world.now + self.delay(link.worker))

        def deliver() -> None:
            if link.worker.session == session and not link.worker.gone:
                link.worker.tell(event)

        self.world.on(link.worker.process, link.down_at - self.world.now, deliver)

    def close(self, candidate: Candidate, session: int, fenced: bool) -> None:
        """The coordinator ends a session; a fenced writer is told so."""
        link = self.links.get(session)
        if link is None:
            return
        writer = link.worker.join_request.writer

        def deliver() -> None:
            if link.worker.session == session:
                link.worker.session = None
                if fenced and link.worker.join_request.writer == writer:
                    link.worker.tell(mem.WriterLost())

        if link.open and not link.deaf_down:
            link.down_at = max(link.down_at, self.world.now + self.delay(link.worker))
            self.world.on(link.worker.process, link.down_at - self.world.now, deliver)
        self.break_link(session)

    def break_link(self, session: int) -> None:
        """Both sides notice in their time."""
        link = self.links.pop(session, None)
        if link is None or not link.open:
            return
        link.open = False
        term, writer = link.term, link.worker.join_request.writer

        def coordinator_sees() -> None:
            if link.candidate.term == term:
                self.world.judges.ended.add((term, writer))
                link.candidate.hear(ev.SessionEnded(session))

        def worker_sees() -> None:
            if link.worker.session == session:
                link.worker.session = None

        # A connection that lingers ends after its last message; else what was on its way is lost.
        up = max(link.up_at, self.world.now) - self.world.now + self.delay(link.worker)
        self.world.on(link.candidate.process, up, coordinator_sees)
        down = max(link.down_at, self.world.now) - self.world.now + self.delay(link.worker)
        self.world.on(link.worker.process, down, worker_sees)

    def end(self, worker: Worker) -> None:
        if worker.session is not None:
            self.break_link(worker.session)

    def coordinator_gone(self, candidate: Candidate) -> None:
        for session in [s for s, link in self.links.items() if link.candidate is candidate]:
            self.break_link(session)
