"""Whether the state of a fleet's instances was deleted while they run: one line for all of it.

One rule: the folders are held open, so that a new folder in the place of an old one is recognised; and nothing is reported while more
of it may still go, because `rm -r` takes its time. Looked at by fleet.py; workers that lose a store only note it
(workers/worker/deleted_stores.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from state import private
from state.directory import HeldFolder
from state.errors import DirectoryUnusable


class StateWatch:
    """The folder of an application, which is there, and those of its instances that the fleet started."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._held = {folder: HeldFolder(folder)}
        self._before: list[Path] = []

    def deleted(self, instances: Iterable[str]) -> list[Path]:
        """The folders that were deleted or replaced since the last look, once two looks agree; they are made again. Raises
        DirectoryUnusable where they cannot be."""
        wanted = {self._root, *(self._root / name for name in instances)}
        for path in self._held.keys() - wanted:  # of an instance that has left
            self._held.pop(path).close()
        for path in wanted - self._held.keys():
            with suppress(DirectoryUnusable):  # the instance has not made it yet
                self._held[path] = HeldFolder(path)
        found = sorted(path for path, held in self._held.items() if held.is_gone())
        before, self._before = self._before, found
        if not found or found != before:
            return []
        self._before = []
        for path in found:
            self._hold_again(path)
        return [self._root] if self._root in found else found

    def _hold_again(self, path: Path) -> None:
        try:
            private.make_folder(path)
        except OSError as error:
            raise DirectoryUnusable(f"the state folder {path} cannot be made again: {error.strerror}") from None
        self._held[path].close()
        self._held[path] = HeldFolder(path)

    def close(self) -> None:
        for held in self._held.values():
            held.close()
