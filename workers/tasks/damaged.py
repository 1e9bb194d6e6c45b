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
        self._known: dict[Path, str] = {}

    def met(self, task: TaskId, error: StateError) -> None:
        """The store that the error names is damaged, or any of the task."""
        if isinstance(error, StoreDamaged) and not isinstance(error, StoreDeleted):
            paths = [self._directory.table(str(task), table) for table in self._prepared.subtopology(task).tables]
            self._known.update({path: str(error) for path in paths if error.path in (path, None)})

    def what(self, path: Path) -> str | None:
        """Why the store that lies there may not be trusted; None where nothing is known of it."""
        return self._known.get(path)

    def gone(self, path: Path) -> None:
        """What lay there was wiped."""
        self._known.pop(path, None)

    async def discard(self, task: TaskId) -> StateError | None:
        """Wipes those of a task, which are closed, whose changelogs begin at their beginning. Returns why one stays."""
        for table in self._prepared.subtopology(task).tables:
            if (path := self._directory.table(str(task), table)) not in self._known:
                continue
            partition = self._prepared.changelog(task, table)
            try:
                if (await self._log.starts([partition]))[partition] == 0:
                    await asyncio.to_thread(self._directory.wipe, str(task), table)
                    self.gone(path)
            except StateError as error:
                return error
        return None
