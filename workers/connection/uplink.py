"""A worker's connection to the coordinator, kept alive beside whatever the worker does.

One rule: a heartbeat does not wait for user code. The connection lives on a loop of its own, in a thread (`ThreadLine`):
where the worker's loop is held by a long call, the last status is sent again, with what is known of that call. A
simulation has one loop and no threads (`LoopLine`). Session joins, publishes and receives through it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.heartbeat_delta import DeltaEncoder
from orchestrator.coordinator.transport import connect
from orchestrator.model import JoinRequest, MemberStatus
from workers.connection.contact import Contact

T = TypeVar("T")
QUIET = 1.5  # heartbeats
Watch = Callable[[], str]  # what is to be known of a call that lasts; "" where none does


class Uplink(Protocol):
    """One connection. Nothing but `receive` and `close` waits."""

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

    async def open(
        self, address: str, credentials: Credentials, heartbeat_s: float, watch: Watch, contact: Contact
    ) -> Uplink:
        """Connects to a coordinator. Raises what `connect` raises."""

    def close(self) -> None: ...


class LoopUplink:
    """An uplink on the running loop."""

    def __init__(self, connection: Connection, heartbeat_s: float, watch: Watch, contact: Contact) -> None:
        contact.opened()
        self._contact = contact
        self._connection = connection
        self._heartbeat_s = heartbeat_s
        self._watch = watch
        self._encoder: DeltaEncoder | None = None
        self._status = MemberStatus()
        self._is_closed = False
        self._quiet: asyncio.TimerHandle | None = None  # runs out where nothing is sent

    def join(self, application: str, request: JoinRequest, status: MemberStatus) -> None:
        self._encoder = DeltaEncoder(status)
        self._status = status
        self._sent()
        self._connection.send(messages.Join(messages.VERSION, application, request, status))

    def understands_changes(self, changes: bool) -> None:
        if self._encoder is not None:
            self._encoder.changes = changes

    def publish(self, status: MemberStatus) -> None:
        if self._encoder is not None:
            self._status = status
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
        status = self._status
        notice = "\n".join(filter(None, (status.notice, self._watch())))
        self.publish(replace(status, notice=notice))
        self._status = status


class LoopLine:
    """Connections on the worker's own loop."""

    async def open(
        self, address: str, credentials: Credentials, heartbeat_s: float, watch: Watch, contact: Contact
    ) -> LoopUplink:
        return LoopUplink(await connect(address, credentials), heartbeat_s, watch, contact)

    def close(self) -> None:
        """Nothing but the connections was opened."""


class ThreadLine:
    """Connections on a loop in a thread, which begins with the first one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(
        self, address: str, credentials: Credentials, heartbeat_s: float, watch: Watch, contact: Contact
    ) -> ThreadUplink:
        return ThreadUplink(self, await self.call(_open(address, credentials, heartbeat_s, watch, contact)))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def soon(self, work: Callable[..., Any], *args: Any) -> None:
        """Have the thread do it, without waiting."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work, *args)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do it, and wait for the answer."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="uplink", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _open(
    address: str, credentials: Credentials, heartbeat_s: float, watch: Watch, contact: Contact
) -> LoopUplink:
    return LoopUplink(await connect(address, credentials), heartbeat_s, watch, contact)


class ThreadUplink:
    """An uplink whose connection lives in the thread of a ThreadLine."""

    def __init__(self, line: ThreadLine, uplink: LoopUplink) -> None:
        self._line = line
        self._uplink = uplink
        self._received: asyncio.Queue[messages.Down | Exception] = asyncio.Queue()
        self._home = asyncio.get_running_loop()
        line.soon(self._begin)

    def join(self, application: str, request: JoinRequest, status: MemberStatus) -> None:
        self._line.soon(self._uplink.join, application, request, status)

    def understands_changes(self, changes: bool) -> None:
        self._line.soon(self._uplink.understands_changes, changes)

    def publish(self, status: MemberStatus) -> None:
        self._line.soon(self._uplink.publish, status)

    async def receive(self) -> messages.Down:
        message = await self._received.get()
        if isinstance(message, Exception):
            self._received.put_nowait(message)
            raise message
        return message

    async def close(self) -> None:
        await self._line.call(self._uplink.close())

    def _begin(self) -> None:
        self._pump = asyncio.get_running_loop().create_task(self._receive_all(), name="receive")

    async def _receive_all(self) -> None:
        try:
            while True:
                message = await self._uplink.receive()
                self._home.call_soon_threadsafe(self._received.put_nowait, message)
        except Exception as error:  # noqa: BLE001 - it is raised where messages are received
            ended = error if error.args else ConnectionEnded("the connection ended")
            self._home.call_soon_threadsafe(self._received.put_nowait, ended)
