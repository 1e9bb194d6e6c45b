"""A file that a command writes: whole in its place, or not there.

One rule: it is written beside its place under a name that no other writer has, and renamed at the end. It is locked meanwhile,
so that a later writer can tell what a killed one left from what is at work, and removes it. Used by table_file.py.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


class PartFile:
    """Raises OSError where there can be none."""

    def __init__(self, target: Path) -> None:
        self._target = target
        _remove_left(target)
        while True:
            self.path = target.with_name(f".{target.name}.{os.getpid()}-{token_hex(4)}.part")
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with suppress(OSError):  # a disk without locks: then none of it is taken for left behind, either
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.path.exists():
                break
            os.close(self._descriptor)  # taken for left behind before it was locked

    def end(self, *, keep: bool) -> None:
        """Puts it into its place, or discards it. Raises OSError where it cannot be put there; then it is discarded."""
        try:
            if keep:
                self.path.replace(self._target)
        finally:
            with suppress(OSError):
                self.path.unlink()
            os.close(self._descriptor)  # until then it is locked


def _remove_left(target: Path) -> None:
    """What writers of the same file left that were killed."""
    name = re.compile(rf"\.{re.escape(target.name)}\.\d+-[0-9a-f]{{8}}\.part")
    there: list[Path] = []
    with suppress(OSError):  # a folder that may be written and not read
        there = [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
    for path in there:
        with suppress(OSError):  # at work, removed already, or another user's
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
