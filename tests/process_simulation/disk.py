"""The disk in memory: state directories with locks, and stores that lose what they had not flushed when a process dies.

One rule: a table on disk is what was flushed, with its offset, in one piece; a lock belongs to a process and ends with it.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from state.directory import TableOnDisk
from state.errors import DirectoryLocked, StateError, StoreDamaged
from state.store.memory import MemoryStore
from state.store.protocol import Range
from state.store.rocksdb import Peek, RocksDbStore
from tests.process_simulation.process import DEAD, Process, ProcessGone, current


@dataclass
class Table:
    """What is flushed of a table."""

    stamp: dict[str, str]
    values: dict[bytes, bytes] = field(default_factory=dict)
    offset: int = 0
    time_ms: int = 0
    damaged: bool = False


class Disk:
    """The state directories of all instances; one host for each instance."""

    def __init__(self, chance: random.Random, breaks: Callable[[str], None]) -> None:
        self.chance = chance
        self._breaks = breaks
        self.failing = 0  # so many of the next writes of stores fail
        self.flush_rate = 0.05  # a store flushes by itself after one write in so many
        self.tables: dict[Path, Table] = {}
        self.open: dict[Path, Process] = {}
        self.locks: dict[Path, Process] = {}
        self.notes: dict[Path, bytes] = {}
        self.losing = self.tearing = 0  # so many of the next notes that are read are not there, or by half
        self.ingested = 0  # tables that were restored from a snapshot
        self.unwritten: set[tuple[str, str]] = set()  # (process, task) whose store could not be read or written

    def open_directory(self, root: Path, application: str, instance: str) -> Directory:
        return Directory(self, root / application / instance)

    def open_store(self, path: Path, stamp: Mapping[str, str], clock_ms: Any) -> DiskStore:
        process = current()
        self.touch(path)
        holder = self.open.get(path)
        if holder is not None and holder.state != DEAD:
            raise DirectoryLocked(f"the store {path} is open in {holder.name}: close it there first")
        table = self.tables.setdefault(path, Table(dict(stamp)))
        if table.damaged:
            self.unwritten.add((process.name, path.parent.name))
            raise StoreDamaged(f"the store {path} cannot be read: wipe it and restore it from its changelog")
        self.open[path] = process
        return DiskStore(self, path, table, process, clock_ms)

    def lose(self, folder: Path) -> None:
        """All that lies under it is gone. Its processes are dead."""
        for path in [path for path in self.tables if path.is_relative_to(folder)]:
            del self.tables[path]
        for path in [path for path in self.notes if path.is_relative_to(folder)]:
            del self.notes[path]

    def remove_notes(self, folder: Path) -> None:
        for path in [path for path in self.notes if path.parent == folder]:
            del self.notes[path]

    def touch(self, path: Path) -> None:
        """A judge: whoever opens or removes a table holds the lock of its task."""
        process, holder = current(), self.locks.get(path.parent)
        if holder is not process:
            self._breaks(f"lock: {process.name} uses {path}, whose lock {holder.name if holder else 'nobody'} holds")

    def tasks_of(self, folder: Path) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self.tables):
            if path.parent.parent == folder:
                found.setdefault(path.parent.name, []).append(path)
        return found


class DiskStore(MemoryStore):
    """A store of a process: what it wrote is on the disk once it is flushed."""

    def __init__(self, disk: Disk, path: Path, table: Table, process: Process, clock_ms: Any) -> None:
        super().__init__(stamp=table.stamp, clock_ms=clock_ms)
        self.path = path
        self._disk = disk
        self._table = table
        self._process = process
        self._written_stamp = dict(table.stamp)  # what it is marked with is on the disk with the next write
        self._values = dict(table.values)
        self._keys = sorted(self._values)
        self._offset, self._time_ms = table.offset, table.time_ms

    def _check_open(self) -> None:
        if self._process.state == DEAD:
            raise ProcessGone(self._process.name)
        if self._table.damaged:
            self._disk.unwritten.add((self._process.name, self.path.parent.name))
            raise StoreDamaged(f"the store {self.path} cannot be read: wipe it and restore it from its changelog")
        super()._check_open()

    def write(
        self, changes: Mapping[bytes, bytes | None], offset: int, *, is_whole: bool = True, gone: Sequence[Range] = ()
    ) -> None:
        if self._disk.failing and changes:
            self._disk.failing -= 1
            self._disk.unwritten.add((self._process.name, self.path.parent.name))
            raise StoreDamaged(f"the store {self.path} cannot be written: an error of its disk")
        super().write(changes, offset, is_whole=is_whole, gone=gone)
        self._written_stamp = dict(self._stamp)
        if self._disk.chance.random() < self._disk.flush_rate:
            self.flush()

    def is_empty(self) -> bool:
        return self._offset == 0 and not self._values

    def ingest(self, files: Sequence[Path]) -> None:
        """See `state.store.rocksdb`: all of it is on the disk at once."""
        self._check_open()
        if not self.is_empty():
            raise StateError(f"the store {self.path} is not empty")
        try:
            found = read_files(tuple(file.read_bytes() for file in files))
        except OSError as error:
            self._disk.unwritten.add((self._process.name, self.path.parent.name))
            raise StoreDamaged(f"the store {self.path} cannot be read: {error}") from error
        self._stamp = self._written_stamp = dict(found.stamp)
        self._offset, self._time_ms = found.offset, found.time_ms
        self._values = dict(found.pairs)
        self._keys = sorted(self._values)
        self._disk.ingested += 1
        self.flush()

    def flush(self) -> None:
        self._check_open()
        table = self._table
        table.values, table.offset, table.time_ms = dict(self._values), self._offset, self._time_ms
        table.stamp = self._written_stamp

    def close(self) -> None:
        if self._closed or self._process.state == DEAD:
            return
        if not self._table.damaged:
            self.flush()
        self._closed = True
        self._disk.open.pop(self.path, None)


class Ingested(NamedTuple):
    """What files of a snapshot make of an empty store."""

    stamp: Mapping[str, str]
    offset: int
    time_ms: int
    pairs: tuple[tuple[bytes, bytes], ...]


@functools.lru_cache(512)
def read_files(contents: tuple[bytes, ...]) -> Ingested:
    """Asks a store on a real disk."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number:05d}.sst" for number in range(len(contents))]
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
        store = RocksDbStore(Path(folder) / "store", stamp={})
        try:
            store.ingest(files)
            stamp = {name: value for name, value in store.stamp().items() if name != "time_ms"}
            return Ingested(stamp, store.offset, int(store.stamp()["time_ms"]), tuple(store.range(None, None)))
        finally:
            store.close()


class NoteFile:
    """The file of a call's note: the part of `pathlib.Path` that CallNote uses."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def write_bytes(self, data: bytes) -> None:
        current()
        self._disk.notes[self._path] = data

    def read_bytes(self) -> bytes:
        found = self._disk.notes.get(self._path)
        if found is None:
            raise FileNotFoundError(self._path)
        if self._disk.losing:
            self._disk.losing -= 1
            raise FileNotFoundError(self._path)
        if self._disk.tearing:
            self._disk.tearing -= 1
            return found[: len(found) // 2]
        return found

    def unlink(self, missing_ok: bool) -> None:
        current()
        self._disk.notes.pop(self._path, None)


class Lock:
    """The lock of a task's folder."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path

    def release(self) -> None:
        self._disk.locks.pop(self.path, None)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Folder:
    """See `state.directory.HeldFolder`: nobody deletes it."""

    def has_changed(self) -> bool:
        return False

    def is_gone(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


class Directory:
    """See `state.directory.StateDirectory`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path

    def task(self, task: str) -> Path:
        return self.path / task

    def table(self, task: str, table: str) -> Path:
        return self.path / task / table

    def has(self, task: str, table: str) -> bool:
        return True

    def held(self) -> Folder:
        return Folder()

    def lock(self, task: str) -> Lock:
        path, process = self.task(task), current()
        holder = self._disk.locks.get(path)
        if holder is not None and holder.state != DEAD:
            raise DirectoryLocked(f"the state folder {path} is in use by {holder.name}: wait for it, or stop it")
        self._disk.locks[path] = process
        return Lock(self._disk, path)

    def tasks(self) -> list[str]:
        return list(self._disk.tasks_of(self.path))

    def tables(self, task: str) -> dict[str, TableOnDisk]:
        found: dict[str, TableOnDisk] = {}
        for path in self._disk.tasks_of(self.path).get(task, []):
            table = self._disk.tables[path]
            if table.damaged:
                found[path.name] = TableOnDisk(path, None, "it cannot be read")
            else:
                stamp = {**table.stamp, "time_ms": str(table.time_ms)}
                found[path.name] = TableOnDisk(path, Peek(table.offset, stamp, 0), None)
        return found

    def wipe(self, task: str, table: str | None = None) -> None:
        for path in self._disk.tasks_of(self.path).get(task, []):
            if table is None or path.name == table:
                if path in self._disk.open and self._disk.open[path].state != DEAD:
                    raise StateError(f"{path} is wiped while it is open")
                self._disk.touch(path)
                del self._disk.tables[path]

    def clean(self, keep: Collection[str], *, delay_ms: int, now_ms: int) -> list[str]:
        removed: list[str] = []
        for task, paths in self._disk.tasks_of(self.path).items():
            newest = max(self._disk.tables[path].time_ms for path in paths)
            held = self._disk.locks.get(self.path / task)
            is_young = delay_ms > 0 and now_ms - newest < delay_ms
            if task in keep or is_young or (held is not None and held.state != DEAD):
                continue
            lock = self.lock(task)
            self.wipe(task)
            lock.release()
            removed.append(task)
        return removed
