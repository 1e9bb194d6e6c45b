"""The port on which an instance serves its metrics: HTTP/1.1, one request a connection.

One rule: a page is made of what is there already, so that a scrape waits for nobody and nobody for it; a peer that is slow,
or sends anything but a short GET, costs its own connection; of too many the oldest makes way.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from orchestrator.errors import WrongUse
from workers.metrics.page import CONTENT_TYPE

log = logging.getLogger("orchestrator.metrics")
PATHS = ("/metrics", "/")
HEAD_BYTES, REQUEST_S, CONNECTIONS_MAX = 16 << 10, 5.0, 64
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


async def refuse_unfit(host: str, port: int) -> None:
    """Before an instance is started for it: raises WrongUse for a place where metrics can never be served. A port in use may be
    free by then: an instance of the fleet before, which was killed, is a moment behind it."""
    try:
        (await asyncio.start_server(lambda reader, writer: writer.close(), host, port)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _refused(host, port, error) from None


def _refused(host: str, port: int, error: OSError) -> WrongUse:
    return WrongUse(
        f"cannot serve metrics on {host}:{port} ({error.strerror or error}); choose another --metrics-port, or --metrics-host"
    )


class MetricsServer:
    """Serves what `page` returns. `open` comes first."""

    def __init__(self, page: Callable[[], str]) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._answers: dict[asyncio.Task[None], None] = {}  # under way, the oldest first

    async def open(self, host: str, port: int) -> str:
        """Listens; returns the address. Raises WrongUse for a port in use, or a host that is not of this machine."""
        try:
            self._server = await asyncio.start_server(self._begin, host, port, limit=HEAD_BYTES)
        except OSError as error:
            raise _refused(host, port, error) from None
        bound = self._server.sockets[0].getsockname()
        address = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}/metrics"
        log.info("metrics are at %s", address)
        return address

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for answer in self._answers:
                answer.cancel()
            await asyncio.gather(*self._answers, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._answers) >= CONNECTIONS_MAX:
            oldest = next(iter(self._answers))
            oldest.cancel()
            del self._answers[oldest]
        answer = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._answers[answer] = None
        answer.add_done_callback(lambda done: self._answers.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("a request for metrics did not end: %r", error)
        finally:
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _response(400, "this is HTTP/1.1: GET /metrics\n")
        method, path = parts[0], parts[1].partition("?")[0]
        if path not in PATHS:
            return _response(404, "metrics are at /metrics\n")
        if method not in ("GET", "HEAD"):
            return _response(405, "metrics are read with GET\n", "Allow: GET, HEAD\r\n")
        return _response(200, self._page(), with_body=method == "GET")


def _response(status: int, text: str, more: str = "", *, with_body: bool = True) -> bytes:
    body = text.encode()
    kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + (body if with_body else b"")
