"""A worker's connection to the coordinator, kept alive beside whatever the worker does.

One rule: a heartbeat does not wait for user code. The connection lives on a loop of its own, in a thread (thread_line.py):
where the worker's loop is held by a long call, the last status is sent again, with what is known of that call. A
simulation has one loop and no threads (`LoopLine`). Session joins, publishes and receives through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.heartbeat_delta import DeltaEncoder
from orchestrator.coordinator.transport import connect
from orchestrator.model import JoinRequest, MemberStatus
from workers.connection.asking import Place
from workers.connection.contact import Contact

QUIET = 1.5  # heartbeats
CONNECT_S = 5.0
Watch = Callable[[], str]  # what is to be known of a call that lasts; "" where none does


@dataclass(frozen=True, slots=True)
class Caller:
    """Who opens connections: what proves it, how often it reports, what is known of its call, and where its instance listens
    ("": nowhere). `contact` learns what is answered."""

    credentials: Credentials
    heartbeat_s: float
    watch: Watch
    contact: Contact
    instance: str


class Uplink(Protocol):
    """One connection. Nothing but `receive` and `close` waits."""

    @property
    def term(self) -> int:
        """Of the coordinator at the other end."""

    def join(self, application: str, request: JoinRequest, status: MemberStatus) -> None:
        """Introduces the member; the statuses that follow are sent as changes of this one."""

    def understands_changes(self, changes: bool) -> None:
        """The coordinator has announced whether it does."""

    def publish(self, status: MemberStatus) -> None:
        """Sends the status, and again with each heartbeat until there is another."""

    async def receive(self) -> messages.Down:
        """The next message. Raises ConnectionEnded, ProtocolError."""

    async def close(self) -> None: ...


class Line(Protocol):
    """Where a worker's connections live."""

    async def open(self, place: Place, caller: Caller) -> Uplink:
        """Connects to a coordinator. Raises what `connect` raises."""

    def close(self) -> None: ...


class LoopUplink:
    """An uplink on the running loop."""

    def __init__(self, connection: Connection, term: int, caller: Caller) -> None:
        caller.contact.opened()
        self.term = term
        self.on_quiet: Callable[[], None] | None = None  # see _keep_alive
        self.status = MemberStatus()  # the last one
        self._contact = caller.contact
        self._connection = connection
        self._heartbeat_s = caller.heartbeat_s
        self._watch = caller.watch
        self._encoder: DeltaEncoder | None = None
        self._is_closed = False
        self._quiet: asyncio.TimerHandle | None = None  # runs out where nothing is sent

    def join(self, application: str, request: JoinRequest, status: MemberStatus) -> None:
        self._encoder = DeltaEncoder(status)
        self.status = status
        self._sent()
        self._connection.send(messages.Join(messages.VERSION, application, request, status))

    def understands_changes(self, changes: bool) -> None:
        if self._encoder is not None:
            self._encoder.changes = changes

    def publish(self, status: MemberStatus) -> None:
        if self._encoder is not None:
            self.status = status
            self._sent()
            self._contact.sent()
            self._connection.send(self._encoder.say(status))

    async def receive(self) -> messages.Down:
        while isinstance(message := await self._connection.receive_down(), messages.Acknowledged):
            self._contact.acknowledged(message.statuses)
        if isinstance(message, messages.Welcome):
            self._contact.promised(message.patience_ms)
        return message

    async def close(self) -> None:
        self._is_closed = True
        if self._quiet is not None:
            self._quiet.cancel()
        await self._connection.close()

    def _sent(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        if not self._is_closed:
            wait_s = self._heartbeat_s * QUIET
            self._quiet = asyncio.get_running_loop().call_later(wait_s, self._keep_alive)

    def _keep_alive(self) -> None:
        """Send the last status again where nothing was published for a heartbeat and a half: the worker is in a call."""
        status = self.status
        notice = "\n".join(filter(None, (status.notice, self._watch())))
        self.publish(replace(status, notice=notice))
        self.status = status
        if self.on_quiet is not None:
            self.on_quiet()


async def open_on_loop(place: Place, caller: Caller, within_s: float = CONNECT_S) -> LoopUplink:
    """Connects, on the loop that runs. Raises what `connect` raises."""
    return LoopUplink(await connect(place.address, caller.credentials, timeout_s=within_s), place.term, caller)


class LoopLine:
    """Connections on the worker's own loop."""

    async def open(self, place: Place, caller: Caller) -> LoopUplink:
        return await open_on_loop(place, caller)

    def close(self) -> None:
        """Nothing but the connections was opened."""
