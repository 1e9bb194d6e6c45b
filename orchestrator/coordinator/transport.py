"""Connecting to an instance of the group, with the proof that both ends have the application's secret.

One rule: what `connect` returns has been proven on both sides. A worker, a client and a query begin here; listener.py is
the other end.
"""

from __future__ import annotations

import asyncio
import os
import ssl

from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials, NothingProven, NotTrusted, introduce
from orchestrator.coordinator.tls import SCHEME, Tls, check_signed, client_context

HOLD_S = 3.0  # less than a listener gives to peers that have proven nothing


async def connect(address: str, credentials: Credentials, *, timeout_s: float = 5) -> Connection:
    """Connect to `host:port`, or `tls://host:port`, and prove who both ends are. Raises ConnectionEnded where no instance of
    the application listens, NotTrusted where it has another secret, WrongUse for an open address without TLS."""
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):  # not wait_for, which can swallow a cancellation
            host, port, context = client_context(address, credentials.tls)
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port, ssl=context)
            await introduce(connection, credentials, address)
            return connection
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(f"the certificate of {address} is not one of --tls-ca ({error.verify_message})") from None
    except (TimeoutError, OSError, ValueError) as error:
        _give_up(connection)
        # The text of a connection that was refused has the address again.
        refused = os.strerror(error.errno).lower() if isinstance(error, ConnectionError) and error.errno else ""
        raise ConnectionEnded(f"no instance answers at {address} ({refused or str(error) or 'timed out'})") from None
    except NothingProven as error:
        _give_up(connection)
        what = _of_certificates(credentials.tls) if address.startswith(SCHEME) else ""
        raise NothingProven(f"{error}{what}") from None
    except BaseException:
        _give_up(connection)
        raise


def _of_certificates(tls: Tls | None) -> str:
    """A listener with --tls-ca ends the connection of a peer whose certificate it does not take without a word: asyncio sends no alert.
    Raises TlsUnusable where the own authority does not take the own certificate, which has expired for example."""
    if tls is None or not tls.listens:
        return "; one that was started with --tls-ca wants a certificate: --tls-cert and --tls-key"
    if tls.authority:
        check_signed(tls)
    return f"; or its --tls-ca has not signed --tls-cert {tls.certificate}"


def _give_up(connection: Connection | None) -> None:
    if connection is not None:
        connection.drop(ConnectionEnded("it was given up"))


class ListenerWatch:
    """Whether a process still listens at an address, asked again and again. A connection is held in silence meanwhile: as long
    as it lasts, so does the process, and no new connection is needed."""

    def __init__(self) -> None:
        self._held: _Held | None = None

    async def is_refused(self, address: str, *, timeout_s: float = 1) -> bool:
        """Whether this host reports that no process listens at the address any more. A silence may be anything,
        and so may the refusal of another host, or of what stands between."""
        host, _, port = address.removeprefix(SCHEME).rpartition(":")
        if host not in ("localhost", "127.0.0.1", "::1"):
            return False
        loop = asyncio.get_running_loop()
        if self._held is not None and self._held.lasts(address, loop.time()):
            return False
        self.close()
        held = _Held(address, loop.time())
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: held, host, int(port))
        except ConnectionRefusedError:
            return True
        except (TimeoutError, OSError, ValueError):
            return False
        self._held = held
        return False

    def close(self) -> None:
        if self._held is not None:
            self._held.abort()
            self._held = None


class _Held(asyncio.Protocol):
    """A connection over which nothing is said. It ends by itself, whenever the next look is: a look may wait for a log that
    is away, and a listener ends connections of peers that prove nothing, and logs it."""

    def __init__(self, address: str, began: float) -> None:
        self._address = address
        self._began = began
        self._transport: asyncio.BaseTransport | None = None
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._end = asyncio.get_running_loop().call_later(HOLD_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._end.cancel()

    def lasts(self, address: str, now: float) -> bool:
        """Whether it is still there."""
        return address == self._address and not self._is_lost and now - self._began < HOLD_S

    def abort(self) -> None:
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()
