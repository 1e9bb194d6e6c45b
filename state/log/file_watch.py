"""Whether a file was written, by any process, as the kernel reports it (inotify): so that waiting costs nothing.

One rule: an event is a hint and never the truth; its receiver looks at the file, and looks now and then without one.
Linux alone; elsewhere there are no hints (`open_watch` is None), and one looks more often.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

_MODIFIED = 0x2
_EVENTS_BYTES = 64 << 10


class FileWatch:
    """Calls `hint` after writes to the file while it is `armed`; what was written before that gives a hint at once."""

    def __init__(self, descriptor: int, hint: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._hint = hint
        self._loop: asyncio.AbstractEventLoop | None = None

    def arm(self) -> None:
        """Give hints on the running loop from now on."""
        if self._loop is None and self._descriptor >= 0:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, self._read)

    def disarm(self) -> None:
        """There is no waiter: events that come cost nothing."""
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
            self._loop = None

    def close(self) -> None:
        self.disarm()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        try:
            os.read(self._descriptor, _EVENTS_BYTES)  # equal events that wait are one
        except BlockingIOError:
            return
        self._hint()


def open_watch(path: Path, hint: Callable[[], None]) -> FileWatch | None:
    """A watch of a file that exists; None where the kernel gives none (another system, too many watches)."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return None
    return FileWatch(descriptor, hint)
