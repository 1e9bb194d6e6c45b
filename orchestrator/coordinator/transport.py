"""Connecting to an instance of the group, with the proof that both ends have the application's secret.

One rule: what `connect` returns has been proven on both sides. A worker, a client and a query begin here; listener.py is
the other end.
"""

from __future__ import annotations

import asyncio
import ssl

from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials, NotTrusted, introduce
from orchestrator.coordinator.tls import SCHEME, client_context


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
        raise ConnectionEnded(f"no instance answers at {address} ({error or 'timed out'})") from None
    except ConnectionEnded as error:
        _give_up(connection)
        if address.startswith(SCHEME) and (credentials.tls is None or credentials.tls.server is None):
            what = f"{error}; one that was started with --tls-ca wants a certificate: --tls-cert and --tls-key"
            raise ConnectionEnded(what) from None
        raise
    except BaseException:
        _give_up(connection)
        raise


def _give_up(connection: Connection | None) -> None:
    if connection is not None:
        connection.drop(ConnectionEnded("it was given up"))


async def is_refused(address: str, *, timeout_s: float = 1) -> bool:
    """Whether this host reports that no process listens at the address any more. A silence may be anything,
    and so may the refusal of another host, or of what stands between."""
    host, _, port = address.removeprefix("tls://").rpartition(":")
    if host not in ("localhost", "127.0.0.1", "::1"):
        return False
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, int(port))
    except ConnectionRefusedError:
        return True
    except (TimeoutError, OSError, ValueError):
        return False
    transport.abort()
    return False
