"""Stores of a worker that were deleted while they are open: their tasks are given up, and restored from the log like any other.

One rule: one cause is one line, and no task waits until RocksDB misses a file of its own. Where the whole folder of the instance
is gone, and a fleet on this machine watches it (workers/fleet/state_watch.py), the line is the fleet's. Run by worker.py.
"""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress

from orchestrator.model import TaskId
from state.directory import HeldFolder
from state.errors import DirectoryUnusable
from state.store.rocksdb import deleted
from workers.tasks.task import TaskRun
from workers.worker.ports import RestorePort

log = logging.getLogger("orchestrator.worker")
LOOK_S = 1.0


class DeletedStores:
    """See the module text."""

    def __init__(self, worker: RestorePort) -> None:
        self._worker = worker
        self._held: HeldFolder | None = worker.directory.held()
        self._tasks: set[TaskId] = set()
        self._of_folder: weakref.WeakSet[TaskRun] = weakref.WeakSet()  # that were held when the whole folder went

    def add(self, run: TaskRun) -> None:
        """A store of this task is gone; the others are looked at soon. One that was being opened while the folder went finds
        it out after the folder has its line."""
        if run in self._of_folder:
            log.info("%s lost its state with the folder of the instance", run.id)
        else:
            self._tasks.add(run.id)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._worker.pulse.next(LOOK_S)
                if self._held is None:
                    self._hold_again()
                if self._tasks or self._is_gone() or self._misses_any():
                    self._give_up()
                    self._report()
        finally:
            if self._held is not None:
                self._held.close()

    def _is_gone(self) -> bool:
        return self._held is not None and self._held.is_gone()

    def _hold_again(self) -> None:
        with suppress(DirectoryUnusable):  # its tasks make it again, and may not have begun to
            self._held = self._worker.directory.held()

    def _give_up(self) -> None:
        directory = self._worker.directory
        if self._is_gone():
            self._of_folder.update(self._worker.runs.values())
        for task, run in list(self._worker.runs.items()):
            if gone := self._missing(task, run):
                self._worker.failed(run, deleted(directory.table(str(task), gone[0])))

    def _misses_any(self) -> bool:
        """Whether the folder of a task is gone; where nothing was made or removed beside it, it is not."""
        if self._held is None or not self._held.has_changed():
            return False
        return any(self._missing(task, run) for task, run in self._worker.runs.items())

    def _missing(self, task: TaskId, run: TaskRun) -> list[str]:
        return [table for table in run.stores if not self._worker.directory.has(str(task), table)]

    def _report(self) -> None:
        tasks, self._tasks = ", ".join(map(str, sorted(self._tasks))), set()
        where = self._worker.directory.path
        if self._held is None or not self._held.is_gone():
            log.warning("deleted while in use: the state of %s in %s; it is restored from the log", tasks, where)
            return
        level = logging.INFO if self._worker.spec.instance.is_watched else logging.WARNING
        log.log(level, "deleted while in use: %s; what it held is restored from the log", where)
        self._held.close()
        self._held = None
        self._hold_again()
