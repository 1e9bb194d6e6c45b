"""Opening the stores of a task: what is on disk if it may be trusted, else the newest snapshot, else empty.

One rule: a store that is damaged, foreign or too old costs a restore and a message, never an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.model import TaskId
from pipeline.errors import PipelineError
from state import manifest, snapshot
from state.changelog import usable
from state.directory import StateDirectory
from state.errors import SnapshotUnusable, StoreDamaged
from state.log.protocol import Log, Partition
from state.store.rocksdb import Budget, RocksDbStore
from workers.journal import wall_ms
from workers.prepare import Prepared

log = logging.getLogger("orchestrator.stores")
DELETE_RETENTION_MS = 7 * 24 * 3_600_000


@dataclass(slots=True)
class Opened:
    """An open store: where it came from ("disk", "snapshot", "empty") and at which position."""

    store: RocksDbStore
    partition: Partition
    source: str
    position: int


class StoreOpener:
    """Opens the stores of an instance's tasks; blocking work runs in threads."""

    def __init__(self, log: Log, prepared: Prepared, directory: StateDirectory, snapshots: str) -> None:
        self._log = log
        self._prepared = prepared
        self._directory = directory
        self._snapshots = Path(snapshots) if snapshots else None
        self._budget = Budget()

    async def open(self, task: TaskId) -> dict[str, Opened]:
        """All tables of a task. The caller holds the task's lock."""
        tables = self._prepared.subtopology(task).tables
        partitions = [self._prepared.changelog(task, table) for table in tables]
        starts, ends = await self._log.starts(partitions), await self._log.ends(partitions)
        opened: dict[str, Opened] = {}
        for table, partition in zip(tables, partitions, strict=True):
            bounds = starts[partition], ends[partition]
            opened[table] = await asyncio.to_thread(self._open_table, task, table, partition, bounds)
        return opened

    def _open_table(self, task: TaskId, table: str, partition: Partition, bounds: tuple[int, int]) -> Opened:
        path = self._directory.table(str(task), table)
        info = self._prepared.topics[partition.topic]
        stamp = {"log_id": self._log.log_id, "topic_id": info.topic_id}
        store: RocksDbStore | None = None
        try:
            store = RocksDbStore(path, stamp=stamp, cache=self._budget)
            reason = usable(
                store.offset,
                store.stamp(),
                log_id=self._log.log_id,
                topic_id=info.topic_id,
                start=bounds[0],
                end=bounds[1],
                delete_retention_ms=DELETE_RETENTION_MS,
                now_ms=wall_ms(),
            )
        except StoreDamaged as error:
            reason = str(error)
        if reason is not None:
            log.warning("%s, table %s: %s; it is wiped and restored", task, table, reason)
            if store is not None:
                store.close()
            self._directory.wipe(str(task), table)
            store = RocksDbStore(path, stamp=stamp, cache=self._budget)
        assert store is not None
        if store.offset > 0:
            return Opened(store, partition, "disk", store.offset)
        if store.is_empty() and self._ingest(store, task, table, partition, bounds):
            return Opened(store, partition, "snapshot", store.offset)
        return Opened(store, partition, "empty", store.offset)

    def _ingest(
        self, store: RocksDbStore, task: TaskId, table: str, partition: Partition, bounds: tuple[int, int]
    ) -> bool:
        """Fill an empty store from the newest snapshot that fits; False where there is none."""
        if self._snapshots is None or not self._snapshots.is_dir():
            return False
        counts: Mapping[str, int] = self._prepared.counts()
        found = manifest.newest(self._snapshots, self._prepared.app.id, self._log.log_id, counts)
        if found is None or str(task) not in found.scopes:
            return False
        try:
            scope = manifest.load_scope(self._snapshots, found, str(task))
            reason = snapshot.problem(
                scope,
                table,
                log_id=self._log.log_id,
                topic_id=self._prepared.topics[partition.topic].topic_id,
                start=bounds[0],
                end=bounds[1],
                delete_retention_ms=DELETE_RETENTION_MS,
                now_ms=wall_ms(),
            )
            described = scope.table(table)
            if reason is None and described is not None:
                snapshot.ingest(store, self._snapshots / found.snapshot / str(task), described)
                return True
        except SnapshotUnusable as error:
            reason = str(error)
        log.warning("%s, table %s: snapshot %s is not used: %s", task, table, found.snapshot, reason)
        return False


def disk_positions(directory: StateDirectory, prepared: Prepared, log_id: str) -> dict[TaskId, int]:
    """State that lies on disk whole: task -> sum of its tables' positions. Other processes are not disturbed."""
    found: dict[TaskId, int] = {}
    for name, tables in directory.on_disk().items():
        try:
            task = TaskId.parse(name)
            wanted = prepared.subtopology(task).tables
        except (ValueError, PipelineError) as error:  # a folder of another version of the app
            log.info("%s on disk is of no use: %s", name, error)
            continue
        peeks = [tables[table].peek for table in wanted if table in tables]
        if len(peeks) == len(wanted) and all(p is not None and p.stamp.get("log_id") == log_id for p in peeks):
            found[task] = sum(p.offset for p in peeks if p is not None)
    return found
