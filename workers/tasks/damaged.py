"""Stores that turned out to be damaged while they were open.

One rule: of a task's stores the damaged one alone is thrown away, and at once only where its changelog has all that it had; any other is
judged, as whatever lies on a disk, when it is opened again. Between worker.py, which meets the damage, and the opener in stores.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.model import TaskId
from state.directory import StateDirectory
from state.errors import StateError, StoreDamaged, StoreDeleted
from state.log.protocol import GroupLog
from workers.prepare import Prepared


class Damaged:
    """Those of one worker."""

    def __init__(self, log: GroupLog, prepared: Prepared, directory: StateDirectory) -> None:
        self._log = log
        self._prepared = prepared
        self._directory = directory
        self._known: dict[Path, tuple[str, bytes]] = {}  # why, and which store it was

    def met(self, task: TaskId, error: StateError) -> None:
        """The store that the error names is damaged, or any of the task."""
        if isinstance(error, StoreDamaged) and not isinstance(error, StoreDeleted):
            paths = [self._directory.table(str(task), table) for table in self._prepared.subtopology(task).tables]
            self._known |= {path: (str(error), _identity(path)) for path in paths if error.path in (path, None)}

    def what(self, path: Path) -> str | None:
        """Why the store that lies there may not be trusted; None where nothing is known of it, or another one lies there by now."""
        why, identity = self._known.get(path, ("", b""))
        if not why or identity != _identity(path):
            self.gone(path)
            return None
        return why

    def gone(self, path: Path) -> None:
        """What lay there was wiped."""
        self._known.pop(path, None)

    async def discard(self, task: TaskId) -> StateError | None:
        """Wipes those of a task, which are closed, whose changelogs begin at their beginning. The caller holds the task's lock.
        Returns why one stays."""
        for table in self._prepared.subtopology(task).tables:
            if self.what(path := self._directory.table(str(task), table)) is None:
                continue
            partition = self._prepared.changelog(task, table)
            try:
                if (await self._log.starts([partition]))[partition] == 0:
                    await asyncio.to_thread(self._directory.wipe, str(task), table)
                    self.gone(path)
            except StateError as error:
                return error
        return None


def _identity(path: Path) -> bytes:
    """Of the store that lies there, which RocksDB writes when it makes one."""
    try:
        return (path / "IDENTITY").read_bytes()
    except OSError:
        return b""
