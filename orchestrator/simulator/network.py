"""Sessions between members and coordinators of a simulated cluster.

One rule: within a session nothing is reordered. Here every message takes the same time and none is lost; tests have a
network of their own that draws delays, breaks connections and deafens them.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.group import events as ev
from orchestrator.member import events as mem
from orchestrator.simulator.coordinator import Coordinator
from orchestrator.simulator.nodes import Node


@dataclass
class Link:
    """One session. `overheard`: the coordinator lost its lease and the member has another session; both still hear each
    other over this one."""

    session: int
    node: Node
    coordinator: Coordinator
    overheard: bool = False


class Network:
    """All sessions of a cluster by number; each is used once. `message_ms`: what a message takes."""

    def __init__(self, message_ms: int = 0) -> None:
        self.message_ms = message_ms
        self.links: dict[int, Link] = {}
        self.sessions = 0

    def connect(self, node: Node, coordinator: Coordinator) -> None:
        """Open a session with a coordinator, and join."""
        self.sessions += 1
        node.session = self.sessions
        self.links[self.sessions] = self.link(self.sessions, node, coordinator)
        node.machine.step(mem.SessionOpened(coordinator.term), node.clock())
        self.up(node, ev.Joined(self.sessions, node.join_request, node.machine.status()))

    def link(self, session: int, node: Node, coordinator: Coordinator) -> Link:
        return Link(session, node, coordinator)

    def up(self, node: Node, event: ev.Event) -> None:
        link = self.links.get(node.session or 0)
        if link is not None:
            self.carry(link, event)

    def carry(self, link: Link, event: ev.Event) -> None:
        """To the coordinator of a link."""
        coordinator, delay = link.coordinator, self.up_ms(link)
        if delay is not None:
            coordinator.process.after(delay, lambda: coordinator.receive(event))

    def down(self, session: int, event: mem.MemberEvent) -> None:
        link = self.links.get(session)
        delay = self.down_ms(link) if link is not None else None
        if link is None or delay is None:
            return
        node, overheard = link.node, link.overheard

        def arrive() -> None:
            if (node.session == session or overheard) and node.alive:
                node.receive(event)

        node.process.after(delay, arrive)

    def up_ms(self, link: Link) -> int | None:
        """What the next message to the coordinator takes; None where it is lost."""
        return self.message_ms

    def down_ms(self, link: Link) -> int | None:
        """What the next message to the member takes; None where it is lost."""
        return self.message_ms

    def close(self, session: int, fenced: bool) -> None:
        if fenced:
            self.down(session, mem.WriterLost())

    def end(self, node: Node) -> None:
        session = node.session
        if session is not None:
            self.up(node, ev.SessionEnded(session))
            node.session = None
