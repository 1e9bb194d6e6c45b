"""Folders for the time of one job, which no later job finds: also not after a kill.

One rule: the process that made a folder holds its lock (flock) until it removes it; a folder whose lock is free has no process
any more, and the next job removes it. A folder without a lock file is not one of these, and stays. POSIX only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from state.clocks import monotonic_s
from state.private import FILE, make_folder

LOCK = ".lock"
GONE_S = 5.0


class Scratch:
    """A folder of this process. Making one creates it."""

    def __init__(self, path: Path) -> None:
        make_folder(path)
        self.path = path
        # It has its name once it is held: another job that begins at this moment takes a free one for left behind.
        unnamed = path / f"{LOCK}-{token_hex(6)}"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, FILE)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(path / LOCK)

    def remove(self) -> None:
        """Whatever still writes into it may do so for a moment: removed until it is gone, for a while at most."""
        until = monotonic_s() + GONE_S
        while self.path.exists() and monotonic_s() < until:
            shutil.rmtree(self.path, ignore_errors=True)
        self.keep()

    def keep(self) -> None:
        """It stays for people, and is never removed by a job."""
        (self.path / LOCK).unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def scratch(root: Path, prefix: str) -> Iterator[Path]:
    """A folder for the time of a `with` block; what jobs that were killed have left beside it goes first."""
    sweep(root, f"{prefix}*")
    made = Scratch(root / f"{prefix}{token_hex(6)}")
    try:
        yield made.path
    finally:
        made.remove()


def sweep(root: Path, pattern: str, *, but_with: str = "") -> list[Path]:
    """Removes what processes that are no more have left below `root`; returns which folders those were. `but_with`: a folder that
    has a file of this name stays."""
    gone = []
    for path in sorted(root.glob(pattern)) if root.is_dir() else []:
        if _is_left(path / LOCK) and not (but_with and (path / but_with).exists()):
            shutil.rmtree(path, ignore_errors=True)
            gone.append(path)
    return gone


def _is_left(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:  # none of these folders, or another user's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
