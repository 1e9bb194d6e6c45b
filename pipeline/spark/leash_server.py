"""The driver's end of the connections to instances in Spark tasks: orders go down, an ended connection is an ended process.

One rule: an order to end counts for the job of an instance and not for a process, so a process that Spark starts for it
later gets it as its first message; and of two processes of one job the later attempt lives, the earlier stops in order as soon
as it is reached. In the flow: hosting (the driver) -> `LeashServer` -> leash.py (executors).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal

import msgspec

from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.listener import Listener, Peer
from orchestrator.coordinator.secret import Right, refusal
from orchestrator.errors import ProtocolError
from pipeline.spark.leash import Hosted, Order, Process, Word, kernel
from workers.fleet.presence import started

STRENGTH: tuple[Word | None, ...] = (None, "stop", "bounce", "kill")
log = logging.getLogger("orchestrator.hosting")
_hosted = msgspec.msgpack.Decoder(Hosted)


class Remote:
    """The process of one job's instance, as far as the driver knows it."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self.hosted: Hosted | None = None  # the process of the latest attempt, also after its end
        self._connection: Connection | None = None
        self._wanted: Word | None = None
        self._leaving: tuple[Process, Word] | None = None

    @property
    def is_there(self) -> bool:
        """Whether a process is connected now."""
        return self._connection is not None

    def order(self, word: Word) -> None:
        """Send it, and to whatever process comes later, unless a stronger one was given."""
        if STRENGTH.index(word) > STRENGTH.index(self._wanted):
            self._wanted = word
            self._send()

    @property
    def is_to_end(self) -> bool:
        """Whether its job was given an order to end."""
        return self._wanted is not None

    def leave(self, word: Word = "leave") -> None:
        """This process is to hand over and end (or to stop in order: "bounce"), and none that Spark starts after it."""
        if self._connection is not None and self.hosted is not None:
            self._leaving = self.hosted.process, word
            self._send()

    def kill_here(self) -> None:
        """A SIGKILL, where the process is one of this kernel's: one that stands still reads no order."""
        found = self.hosted
        if found is None or self._connection is None:
            return
        process = found.process
        if process.kernel and process.kernel == kernel() and started(process.pid) == process.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def begun(self, hosted: Hosted, connection: Connection) -> bool:
        """A process is connected. False where it is of an attempt that has a successor."""
        before = self.hosted
        if before is not None and hosted.attempt < before.attempt:
            return False
        if before is not None and hosted.attempt > before.attempt and not self.is_to_end:
            log.warning(
                "%s: its process %d on %s, or the executor of that, was lost; Spark has started it again on %s",
                self._instance,
                before.process.pid,
                before.host,
                hosted.host,
            )
        if self._connection is not None:
            same = self.hosted is not None and hosted.process == self.hosted.process
            if not same:
                self._connection.send(Order("bounce"))
        self.hosted, self._connection = hosted, connection
        self._send()
        return True

    def ended(self, connection: Connection) -> None:
        """A connection is over."""
        if self._connection is connection:
            self._connection = None

    def _send(self) -> None:
        if self._connection is None or self.hosted is None:
            return
        if self._leaving is not None and self._leaving[0] == self.hosted.process:
            self._connection.send(Order(self._leaving[1]))
        if self._wanted is not None:
            self._connection.send(Order(self._wanted))


class LeashServer:
    """Listens in the driver."""

    def __init__(self, credentials: Credentials) -> None:
        self._listener = Listener(credentials, self._serve)
        self._remotes: dict[str, Remote] = {}

    async def open(self, host: str, port: int) -> str:
        """Returns the address for executors. Raises WrongUse, see Listener.open."""
        return await self._listener.open(host, port)

    async def close(self) -> None:
        await self._listener.close()

    def expect(self, group: str, instance: str) -> Remote:
        """The process of the job of an instance that is about to be submitted."""
        return self._remotes.setdefault(group, Remote(instance))

    def forget(self, group: str) -> None:
        """The job is over: a process of it that still comes is ended."""
        self._remotes.pop(group, None)

    async def _serve(self, peer: Peer) -> None:
        if peer.right < Right.JOIN:
            raise ProtocolError(refusal(peer.right, Right.JOIN))
        connection = peer.connection
        try:
            hosted = _hosted.decode(await connection.receive())
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"no instance of a Spark task: {error}") from None
        connection.notice_a_dead_host()
        remote = self._remotes.get(hosted.group)
        if remote is None:
            connection.send(Order("kill"))
        elif not remote.begun(hosted, connection):
            connection.send(Order("bounce"))
            remote = None
        try:
            while True:
                await connection.receive()  # nothing more is said; it ends with the process
        except ConnectionEnded:
            if remote is not None:
                remote.ended(connection)
            raise
