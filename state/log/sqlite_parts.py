"""The files of a SQLite log: the log itself, its write-ahead file, and the index of that, which all processes on it share.

One rule: processes that do not share one index do not write to one log: each would put its commits where the others have
theirs. So a file that was deleted or replaced under a process ends its use of the log, and none opens a log that others
have open with an index that is gone. Below state.log.sqlite_file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from pathlib import Path

from state.clocks import monotonic_s
from state.errors import LogReplaced, LogUnusable

ENDINGS = ("", "-wal", "-shm")
LOOK_AGAIN_S = 0.008  # whoever waits for others to be through looks so often
_MADE_S = 1.0  # between what the first process on a log writes and its index
_SHARED, _SHARED_BYTES = 0x40000002, 510  # of these SQLite locks at least one while it has a file open
# struct flock: kind, whence, start, length, process; where another system has another one, others are not seen.
_FLOCK = {"linux": "hhqqi4x", "darwin": "qqihh"}.get(sys.platform)
_looked_at: dict[tuple[int, int], int] = {}  # descriptors by the identity of their file


class FileIdentity:
    """Notices that a file of a running log was deleted or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._was = [(file, _identity(file)) for file in _files(path)]

    def check(self) -> None:
        """Raises LogReplaced."""
        for file, was in self._was:
            if _identity(file) != was:
                part = "" if file == self._was[0][0] else f", {file} beside it,"
                raise LogReplaced(
                    f"the log {self.path}{part} was deleted or replaced while in use: put it back or restart all processes"
                )


def _files(path: Path) -> list[str]:
    """Where SQLite has them: it follows a link, which may lead elsewhere later."""
    return [str(path), *(f"{os.path.realpath(path)}{ending}" for ending in ENDINGS[1:])]


def _identity(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - called at every poll, and Path.stat costs three times as much
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_whole(path: Path) -> None:
    """Before a log is opened. Raises LogUnusable where others have it open and a file beside it is gone: SQLite would make another."""
    deadline = monotonic_s() + _MADE_S
    log, *beside = _files(path)
    while gone := next((file for file in beside if _identity(file) is None), ""):
        if (pid := _other_on(log)) is None:
            return
        if monotonic_s() >= deadline:
            raise LogUnusable(
                f"{gone}, a part of the log {path}, was deleted while {f'process {pid}' if pid > 0 else 'another process'} had it "
                "open; nothing was written: stop what runs on the log in order (SIGTERM), which loses nothing, then start it again"
            )
        time.sleep(LOOK_AGAIN_S)


def _other_on(log: str) -> int | None:
    """Another process that has a SQLite file open; one of another container has no number, and is 0 or less."""
    if _FLOCK is None or (identity := _identity(log)) is None:
        return None
    for known, descriptor in list(_looked_at.items()):
        if os.fstat(descriptor).st_nlink == 0:  # deleted since
            os.close(_looked_at.pop(known))
    # Not closed while the file is there: to close it by other means than SQLite's would free this process's own locks on it.
    if identity not in _looked_at:
        try:
            _looked_at[identity] = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
    wanted = {"kind": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": _SHARED, "length": _SHARED_BYTES, "pid": 0}
    order = (
        ("kind", "whence", "start", "length", "pid")
        if sys.platform == "linux"
        else ("start", "length", "pid", "kind", "whence")
    )
    asked = struct.pack(_FLOCK, *(wanted[name] for name in order))
    try:
        answer = fcntl.fcntl(_looked_at[identity], fcntl.F_GETLK, asked)
    except OSError:
        return None
    found = dict(zip(order, struct.unpack(_FLOCK, answer), strict=True))
    return None if found["kind"] == fcntl.F_UNLCK else int(found["pid"])
