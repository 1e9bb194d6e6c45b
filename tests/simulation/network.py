"""Connections of the simulation: ordered each, with delays of their own; they break, and one direction may be deaf.

One rule: within a connection nothing is reordered or skipped; a loss is the end of the connection. Between connections
there is no order: what lingers of one may arrive after the next has spoken.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.coordinator.heartbeat_delta import DeltaDecoder, DeltaEncoder
from orchestrator.coordinator.messages import FullStatus, StatusDelta
from orchestrator.group import events as ev
from orchestrator.member import events as mem
from orchestrator.model import MemberStatus, Protocol
from orchestrator.simulator.coordinator import Coordinator
from orchestrator.simulator.network import Link, Network
from orchestrator.simulator.nodes import Node

if TYPE_CHECKING:
    from tests.simulation.nodes import Worker
    from tests.simulation.world import World


@dataclass
class FaultyLink(Link):
    """One connection: both directions keep their order by never delivering before what was sent earlier."""

    random: random.Random = field(kw_only=True)
    up_at: int = 0
    down_at: int = 0
    open: bool = True
    deaf_up: bool = False
    deaf_down: bool = False
    lingers: bool = False  # what was sent before its end arrives all the same
    speaker: DeltaEncoder = field(default_factory=lambda: DeltaEncoder(MemberStatus()))
    listener: DeltaDecoder = field(default_factory=DeltaDecoder)


def said(link: FaultyLink, event: ev.Event) -> FullStatus | StatusDelta | None:
    """What a worker sends of its status: whole at first, then what changed, if its version is a new one."""
    if isinstance(event, ev.Joined):
        link.speaker = DeltaEncoder(event.status)
        link.speaker.changes = Protocol.LEARNER in link.node.join_request.protocols
        return FullStatus(event.status)
    return link.speaker.say(event.status) if isinstance(event, ev.Heartbeat) else None


class FaultyNetwork(Network):
    """All links of a world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    # ---- what the shipped one asks

    def link(self, session: int, node: Node, coordinator: Coordinator) -> FaultyLink:
        return FaultyLink(session, node, coordinator, random=self.world.random_of[node.name])

    def up_ms(self, link: Link) -> int | None:
        assert isinstance(link, FaultyLink)
        if not link.open or link.deaf_up:
            return None
        link.up_at = max(link.up_at, self.world.now_ms + self.delay(link))
        return link.up_at - self.world.now_ms

    def down_ms(self, link: Link) -> int | None:
        assert isinstance(link, FaultyLink)
        if not link.open or link.deaf_down:
            return None
        link.down_at = max(link.down_at, self.world.now_ms + self.delay(link))
        return link.down_at - self.world.now_ms

    def carry(self, link: Link, event: ev.Event) -> None:
        """Statuses go as what changed since the last one, as on the wire."""
        assert isinstance(link, FaultyLink)
        delay, coordinator = self.up_ms(link), link.coordinator
        if delay is None:
            return
        writer, message = link.node.join_request.writer, said(link, event)

        def deliver() -> None:
            status = link.listener.decode(message) if message is not None else None
            if link.open or link.lingers:
                self.world.judges.heard_from(coordinator, writer)
                coordinator.receive(replace(event, status=status) if isinstance(event, ev.Heartbeat) else event)

        coordinator.process.after(delay, deliver)

    def close(self, session: int, fenced: bool) -> None:
        """Ends a session of the coordinator; a fenced writer receives that as the reason."""
        link = self.faulty(session)
        if link is None:
            return
        node, writer = link.node, link.node.join_request.writer

        def deliver() -> None:
            if node.session == session:
                node.session = None
                if fenced and node.join_request.writer == writer:
                    node.receive(mem.WriterLost())

        delay = self.down_ms(link)
        if delay is not None:
            node.process.after(delay, deliver)
        self.break_link(session)

    def end(self, node: Node) -> None:
        if node.session is not None:
            self.break_link(node.session)

    # ---- what happens to links

    def faulty(self, session: int | None) -> FaultyLink | None:
        link = self.links.get(session or 0)
        return link if isinstance(link, FaultyLink) else None

    def delay(self, link: FaultyLink) -> int:
        return link.random.randrange(1, self.world.plan.delay_max)

    def join(self, worker: Worker) -> None:
        """Connect to whoever the lease names, as far as it runs."""
        coordinator = self.world.holder()
        old = [found for c in self.world.candidates if (found := c.coordinator) is not None and c.process.alive]
        if self.world.faulty and old and worker.random.random() < 0.1:
            coordinator = worker.random.choice(old)  # the lease was read before it changed hands
        if coordinator is None or worker.name in self.world.cut:
            return
        worker.highest = max(worker.highest, coordinator.term)
        self.connect(worker, coordinator)

    def break_link(self, session: int) -> None:
        """Both sides notice in their time."""
        link = self.faulty(session)
        if link is None or not link.open:
            return
        del self.links[session]
        link.open = False
        node, coordinator, writer = link.node, link.coordinator, link.node.join_request.writer

        def coordinator_sees() -> None:
            self.world.judges.ended.add((coordinator.term, writer))
            coordinator.receive(ev.SessionEnded(session))

        def worker_sees() -> None:
            if node.session == session:
                node.session = None

        # A connection that lingers ends after its last message; else what was on its way is lost.
        up = max(link.up_at, self.world.now_ms) - self.world.now_ms + self.delay(link)
        coordinator.process.after(up, coordinator_sees)
        down = max(link.down_at, self.world.now_ms) - self.world.now_ms + self.delay(link)
        node.process.after(down, worker_sees)

    def break_deaf(self) -> None:
        """What a keepalive ends."""
        for session in list(self.links):
            link = self.faulty(session)
            if link is not None and (link.deaf_up or link.deaf_down):
                self.break_link(session)

    def coordinator_gone(self, coordinator: Coordinator) -> None:
        for session in [s for s, link in self.links.items() if link.coordinator is coordinator]:
            self.break_link(session)
