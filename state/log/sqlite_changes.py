"""Whether a SQLite log was written, by any process, and how a reader waits for that. Runs on the event loop.

One rule: only the file's own version is believed (a microsecond, it takes no lock); hints of the kernel, and time, say when to
look. After a hint looks follow each other, ever more rarely: a commit can be seen a moment after its bytes, and one whose
writer was held up in between is seen late by twice as much at most. At rest there are two looks a second.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

from state.errors import LogUnusable
from state.log.file_watch import FileWatch, open_watch
from state.log.sqlite_file import explain
from state.log.sqlite_parts import FileIdentity

_LOOK_MIN_S = 0.0005
_LOOK_MAX_S = 0.020
_WATCHED_MAX_S = 0.5  # where the kernel reports writes


class Changes:
    """`connection`: on the file, for nothing but this."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        identity: FileIdentity,
        watch: Callable[[Path, Callable[[], None]], FileWatch | None] = open_watch,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._waiting: set[asyncio.Future[None]] = set()
        self._wakes = 0
        self._version = 0
        self._hinted_at = -math.inf  # when the file was written last, as far as the kernel has reported
        self._watch = watch(Path(f"{identity.path}-wal"), self._hint)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self.wake()
        if self._watch is not None:
            self._watch.close()
        self._connection.close()

    def check_open(self) -> None:
        """Raises LogUnusable where this process has closed the log."""
        if self.is_closed:
            raise LogUnusable(f"the log {self._identity.path} was closed by this process: open it again")

    def version(self) -> int:
        """Changes whenever any process commits. Busy (another process recovers the file) counts as a change.
        Raises LogUnusable."""
        self.check_open()
        self._identity.check()
        try:
            self._version = self._connection.execute("pragma data_version").fetchone()[0]
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                raise explain(error, self._identity.path) from error
            return -1
        return self._version

    async def changed(self, version: int, deadline: float) -> None:
        """Return when the version is another one, when `wake` was called, or at the deadline."""
        loop = asyncio.get_running_loop()
        began, wakes = loop.time(), self._wakes
        while (now := loop.time()) < deadline:
            woken: asyncio.Future[None] = loop.create_future()
            self._waiting.add(woken)
            if self._watch is not None:
                self._watch.arm()
            timer = loop.call_at(min(now + self._pause_s(now, began), deadline), _finish, woken)
            try:
                await woken
            finally:
                timer.cancel()
                self._waiting.discard(woken)
            if self.version() != version or wakes != self._wakes:  # `wake` may come behind a timer, in the same turn
                return

    def _pause_s(self, now: float, began: float) -> float:
        """Until the next look, where nothing calls for one before."""
        if self._watch is None:
            return min(max(2 * (now - began), _LOOK_MIN_S), _LOOK_MAX_S)
        return min(max(2 * (now - self._hinted_at), _LOOK_MIN_S), _WATCHED_MAX_S)

    def wake(self) -> None:
        """Have waiting readers look again now: this process wrote, or a reader got another partition."""
        self._wakes += 1
        for woken in self._waiting:
            _finish(woken)

    def _hint(self) -> None:
        """The file was written, by this process or another. Where no reader waits, further hints wait as well."""
        self._hinted_at = asyncio.get_running_loop().time()
        if not self._waiting and self._watch is not None:
            self._watch.disarm()
        for woken in self._waiting:
            _finish(woken)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
