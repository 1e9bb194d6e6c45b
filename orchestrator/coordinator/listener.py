"""The listener of an instance: it admits peers that have the application's secret, and bounds the cost of others.

One rule: nothing is handed on before the peer has proven its right. Connections, strangers among them, frames that have
begun and the time that both may take are bounded; the bounds are counted in sweeps, so that a process that stood still
drops no connection for it. The coordinator, queries and the instance's workers are served behind it (services.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials, NotAdmitted, admit
from orchestrator.coordinator.handshake_rate import HandshakeRate
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.tls import SCHEME, Contexts, Tls, check_tls
from orchestrator.errors import ProtocolError, WrongUse

log = logging.getLogger("orchestrator.listener")
CONNECTIONS_MAX = 10_000
STRANGERS_MAX = 256  # connections that have not proven anything yet; the oldest makes way
UNFINISHED_BYTES_MAX = 256 << 20  # of frames that have begun, in all connections; the largest makes way
SWEEP_S = 1.0
STRANGER_SWEEPS, FRAME_SWEEPS = 5, 20
LINES_A_SWEEP = 10  # what strangers can write into the log
TLS_HANDSHAKE_S = 5.0


class TooMuch(ProtocolError):
    """A peer took more time or memory than one may. What it sent may be of the protocol: a slow machine's is."""


class Unfinished:
    """Frames that have begun: how much of them is here, and for how many sweeps."""

    def __init__(self, limit: int = UNFINISHED_BYTES_MAX) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[Connection, list[int]] = {}  # bytes, sweeps

    def holds(self, connection: Connection, size: int, *, same_frame: bool) -> None:
        """See connection.Account."""
        before = self._held.get(connection)
        if before is not None:
            self.total -= before[0]
        if not size:
            self._held.pop(connection, None)
            return
        self._held[connection] = [size, before[1] if before is not None and same_frame else 0]
        self.total += size
        if self.total > self.limit:
            largest = max(self._held, key=lambda one: self._held[one][0])
            self._drop(largest, f"frames that have begun are over {self.limit} bytes; its is the largest")

    def sweep(self) -> None:
        """Once every SWEEP_S."""
        for connection, held in list(self._held.items()):
            held[1] += 1
            if held[1] > FRAME_SWEEPS:
                self._drop(connection, f"a frame was not whole after {FRAME_SWEEPS * SWEEP_S:g} s")

    def _drop(self, connection: Connection, why: str) -> None:
        self.total -= self._held.pop(connection)[0]
        connection.drop(TooMuch(why))


@dataclass(eq=False, slots=True)
class Peer:
    """A connection that was admitted, with what it may do. `id` is never used again in this process."""

    connection: Connection
    right: Right
    id: int
    asking: set[asyncio.Task[None]] = field(default_factory=set)


class Listener:
    """One port of an instance. `accept` has a peer for as long as it is served; its connection is closed then."""

    def __init__(
        self, credentials: Credentials, accept: Callable[[Peer], Awaitable[None]], sweep_s: float = SWEEP_S
    ) -> None:
        self._sweep_s = sweep_s
        self.address = ""
        self.unfinished = Unfinished()
        self._credentials = credentials
        self._accept = accept
        self._tls: Tls | None = None
        self._rate: HandshakeRate | None = None  # where there is TLS
        self._ids = itertools.count(1)
        self._strangers: dict[Connection, int] = {}  # sweeps, the oldest first
        self._serving: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self._lines = 0
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; returns the address for `connect`. Raises WrongUse for a port in use, and for an address that other
        machines reach where there is no TLS."""
        self._tls = check_tls(host, self._credentials.tls)
        loop = asyncio.get_running_loop()
        self._rate = None if self._tls is None else HandshakeRate(loop.time())
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._made, self.unfinished, waits=self._tls is not None), host, port, backlog=512
            )
        except OSError as error:
            raise WrongUse(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another port, or 0 for a free one"
            ) from None
        self._sweeping = loop.create_task(self._sweep(), name="sweep")
        bound = self._server.sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"{SCHEME if self._tls is not None else ''}{shown}:{bound[1]}"
        return self.address

    @property
    def connections(self) -> tuple[int, int]:
        """How many there are, and how many of them have proven nothing yet."""
        return len(self._serving), len(self._strangers)

    async def close(self) -> None:
        """End the port and whatever is served behind it."""
        if self._server is not None:
            self._server.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _made(self, connection: Connection) -> None:
        if len(self._serving) >= CONNECTIONS_MAX:
            connection.drop(ConnectionEnded("there are too many connections"))
            return
        loop = asyncio.get_running_loop()
        host = connection.peer_host
        if self._rate is not None and not self._rate.takes(host, loop.time()):
            self._warn(
                "refused a peer: %s",
                TooMuch(
                    f"too many handshakes of TLS begin from {host}, or from all addresses that have not proven the secret"
                ),
            )
            connection.drop(ConnectionEnded("there are too many handshakes"))
            return
        self._strangers[connection] = 0
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.drop(ConnectionEnded("it made way for others that had proven nothing yet"))
        task = loop.create_task(self._serve(connection, host))
        self._serving[task] = None
        task.add_done_callback(self._serving.pop)

    async def _serve(self, connection: Connection, host: str) -> None:
        try:
            binding = b"" if self._tls is None else await self._secured(connection, self._tls.now())
            right = await admit(connection, self._credentials, binding)
            self._strangers.pop(connection, None)
            if self._rate is not None:
                self._rate.admitted(host, asyncio.get_running_loop().time())
            await self._accept(Peer(connection, right, next(self._ids)))
        except ConnectionEnded:
            pass
        except NotAdmitted as error:
            self._warn("refused a peer: %s", error)
        except TooMuch as error:
            self._warn("dropped a peer: %s", error)
        except ProtocolError as error:
            self._warn("dropped a peer that sent a malformed frame: %s", error)
        except Exception:
            log.exception("an internal error ended the connection of a peer")
        finally:
            self._strangers.pop(connection, None)
            await connection.close()

    async def _secured(self, connection: Connection, contexts: Contexts) -> bytes:
        assert contexts.server is not None
        await connection.secure(contexts.server, TLS_HANDSHAKE_S)
        return contexts.binding

    def _warn(self, text: str, error: Exception) -> None:
        self._lines += 1
        if self._lines <= LINES_A_SWEEP:
            log.warning(text, error)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            if self._lines > LINES_A_SWEEP:
                log.warning("and %d more peers were refused or dropped", self._lines - LINES_A_SWEEP)
            self._lines = 0
            self.unfinished.sweep()
            for connection, sweeps in list(self._strangers.items()):
                self._strangers[connection] = sweeps + 1
                if sweeps >= STRANGER_SWEEPS:
                    del self._strangers[connection]
                    with contextlib.suppress(KeyError):
                        connection.drop(TooMuch(f"it proved nothing within {STRANGER_SWEEPS * SWEEP_S:g} s"))
