"""The tables of a task while it is computed: in memory as long as they are small, then on the executor's own disk.

One rule: what they take of memory has a limit, whatever the history holds: where all tables of a task together exceed
it, the largest goes to disk, and stays there. Nothing else changes by it: what is read is the same, in the same order.
Filled by `stage`, which reads it back in key order when the task is done.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from state.store.rocksdb import Budget, RocksDbStore

ENTRY_BYTES = 160  # what CPython takes for an entry beside its bytes: two objects and a slot of a dict
CHUNK = 4_000
CACHE_BYTES = WRITE_BYTES = 16 << 20


class TaskState:
    """The tables of one task. `stores` are what the processors read."""

    def __init__(self, tables: Iterable[str], limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._folder: Path | None = None
        self._budget = Budget(CACHE_BYTES, WRITE_BYTES)
        self.stores = {table: HistoryStore() for table in tables}

    def write(self, writes: Mapping[str, Mapping[bytes, bytes | None]]) -> None:
        for table, changes in writes.items():
            self.stores[table].write(changes)
        while sum(store.memory_bytes for store in self.stores.values()) > self._limit_bytes:
            table = max(self.stores, key=lambda name: self.stores[name].memory_bytes)
            if self._folder is None:
                local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[
                    0
                ]  # Spark passes its disks to its workers
                self._folder = Path(tempfile.mkdtemp(prefix="stream-orchestrator-", dir=local or None))
            self.stores[table].spill(RocksDbStore(self._folder / table, stamp={}, cache=self._budget))

    def spilled(self) -> int:
        """How many tables are on disk."""
        return sum(store.on_disk for store in self.stores.values())

    def close(self) -> None:
        """Nothing of it is left on disk."""
        for store in self.stores.values():
            store.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class HistoryStore:
    """One table: a dict, sorted when a range is asked for; once it has spilled, a RocksDB without any offset."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = None
        self._disk: RocksDbStore | None = None
        self.memory_bytes = 0

    @property
    def on_disk(self) -> bool:
        return self._disk is not None

    def get(self, key: bytes) -> bytes | None:
        return self._data.get(key) if self._disk is None else self._disk.get(key)

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._disk is not None:
            return self._disk.range(start, stop)
        if self._sorted is None:
            self._sorted = sorted(self._data)
        keys = self._sorted
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if stop is None else bisect_left(keys, stop)
        return iter([(key, self._data[key]) for key in keys[first:last]])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self._disk is not None:
            self._disk.write(changes, 0)
            return
        for key, value in changes.items():
            before = self._data.get(key)
            if value is not None:
                self._data[key] = value
                if before is None:
                    self._sorted = None
                    self.memory_bytes += ENTRY_BYTES + len(key) + len(value)
                else:
                    self.memory_bytes += len(value) - len(before)
            elif before is not None:
                del self._data[key]
                self._sorted = None
                self.memory_bytes -= ENTRY_BYTES + len(key) + len(before)

    def spill(self, disk: RocksDbStore) -> None:
        """Everything goes to an empty store on disk."""
        keys = iter(sorted(self._data))
        while part := list(islice(keys, CHUNK)):
            disk.write({key: self._data[key] for key in part}, 0)
        self._disk, self._data, self._sorted, self.memory_bytes = disk, {}, None, 0

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries in key order."""
        return self.range(None, None)

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()
