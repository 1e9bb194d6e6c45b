"""The files of a SQLite log: the log itself, its write-ahead file, and the index of that, which all processes on it share.

One rule: processes that do not share one index do not write to one log: each would put its commits where the others have
theirs. So a file that was deleted or replaced under a process ends its use of the log, and none opens a log that others
have open with an index that is gone. Below state.log.sqlite_file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from state.clocks import monotonic_s
from state.errors import LogReplaced, LogUnusable

ENDINGS = ("", "-wal", "-shm")
LOOK_AGAIN_S = 0.008  # whoever waits for others to be through looks so often
_MADE_S = 1.0  # between what the first process on a log writes and its index
_SHARED = 0x40000002  # the first byte of the range that SQLite locks while it has a file open


class FileIdentity:
    """Notices that a file of a running log was deleted or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._was = [(file, _identity(file)) for file in (f"{path}{ending}" for ending in ENDINGS)]

    def check(self) -> None:
        """Raises LogReplaced."""
        for file, was in self._was:
            if _identity(file) != was:
                part = "" if file == str(self.path) else f", {file} beside it,"
                raise LogReplaced(
                    f"the log {self.path}{part} was deleted or replaced while in use: put it back or restart all processes"
                )


def _identity(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - called at every poll, and Path.stat costs three times as much
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_whole(path: Path) -> None:
    """Before a log is opened. Raises LogUnusable where others have it open and a file beside it is gone: SQLite would make another."""
    deadline = monotonic_s() + _MADE_S
    while (gone := _missing(path)) and (pids := others_on(path)):
        if monotonic_s() >= deadline:
            those = f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, sorted(pids)))}"
            raise LogUnusable(
                f"{gone}, a part of the log {path}, was deleted while {those} had it open; nothing was written: stop what runs "
                "on the log, which loses nothing, then start it again"
            )
        time.sleep(LOOK_AGAIN_S)


def _missing(path: Path) -> str:
    beside = (f"{path}{ending}" for ending in ENDINGS if ending)
    return next((file for file in beside if _identity(file) is None), "")


def others_on(path: Path) -> set[int]:
    """The other processes that have a SQLite file open, where the system tells (Linux). The file itself is left alone: to close it
    by other means than SQLite's would free this process's locks on it."""
    identity = _identity(str(path))
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        lines = []
    # `1: POSIX  ADVISORY  READ 1234 08:01:5678 1073741826 1073742335`
    held = (line.split() for line in lines if " POSIX " in line and "->" not in line)
    pids = {int(fields[4]) for fields in held if len(fields) == 8 and fields[6] == str(_SHARED)} - {os.getpid()}
    return {pid for pid in pids if identity in _opened_by(pid)}


def _opened_by(pid: int) -> set[tuple[int, int] | None]:
    """Empty for a process of another user, or one that has ended."""
    try:
        return {_identity(str(file)) for file in Path(f"/proc/{pid}/fd").iterdir()} - {None}
    except OSError:
        return set()
