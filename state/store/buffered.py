"""The store of a worker: RocksDB, with a buffer of what was written last before it. A key that changes with every commit is
written to RocksDB once for many of them, and what is new goes there in batches that cost it less.

One rule: the buffer may be lost, as what RocksDB has not flushed may: RocksDB has no log of its own here, and both come back
from the changelog, behind the offset that was written with the data. Whoever reads the store sees the buffer.
Opened by workers/surroundings.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from state.clocks import wall_ms
from state.errors import StateError
from state.store.layout import DATA
from state.store.protocol import Range
from state.store.rocksdb import Budget, RocksDbStore, explain

# What is written at once holds up the worker: 8,000 keys for some 6 ms. They cost RocksDB 0.6 of what 1,500 at a time cost.
MOST_KEYS = 8_000
MOST_BYTES, MOST_BYTES_ALL = 2 << 20, 32 << 20  # of a buffer, and of all that share a budget
ENTRY_BYTES = 150  # of a dict and two objects, beside the bytes of key and value
MOST_ENTRIES = 1 << 16  # of the changelog, after which a buffer is written out however few its keys are
FLUSH_ENTRIES = (
    1 << 17
)  # of the changelog, after which RocksDB flushes: a store whose process was killed replays so many

_MISSING: Final[Any] = object()


class BufferedStore(RocksDbStore):
    """See the module, and `state.store.protocol.Store`. One thread writes; another one may copy or flush meanwhile."""

    def __init__(
        self,
        path: Path,
        *,
        stamp: Mapping[str, str],
        cache: Budget | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__(path, stamp=stamp, cache=cache, clock_ms=clock_ms)
        self._budget = cache or Budget()
        self._budget.buffered.add(path)
        self._buffer: dict[bytes, bytes | None] = {}
        self._gone: list[Range] = []
        self._bytes = 0  # of the buffer, at most
        # What the stamp was at the latest write, where it is to be written
        self._due_stamp: Mapping[str, str] | None = None
        self._is_due = False  # what was written last, the offset at least, is in the buffer alone
        self._written = self._flushed = self._offset
        self._lock = threading.Lock()
        self._is_open = True

    # ------------------------------------------------------------------ reading

    def get(self, key: bytes) -> bytes | None:
        """As the port says; not through the class before it, as it is called for each new key. Raises StateError."""
        found: bytes | None = self._buffer.get(key, _MISSING)
        if found is not _MISSING:
            return found
        try:
            found = self._db.get(DATA + key)
        except Exception as error:
            raise explain(error, self.path) from error
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """`get` of each key, in order. Raises StateError."""
        buffer = self._buffer
        if buffer.keys().isdisjoint(keys):
            return super().get_many(keys)
        missing = [key for key in keys if key not in buffer]
        found = dict(zip(missing, super().get_many(missing), strict=True))
        return [buffer[key] if key in buffer else found[key] for key in keys]

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """As the port says. Raises StateError."""
        self._write_out()
        return super().range(start, stop)

    def size_bytes(self) -> int:
        return super().size_bytes() + self._bytes

    # ------------------------------------------------------------------ writing

    def write(
        self, changes: Mapping[bytes, bytes | None], offset: int, *, is_whole: bool = True, gone: Sequence[Range] = ()
    ) -> None:
        """As the port says. Raises StateError."""
        if not self._is_open:
            raise StateError(f"the store {self.path} was closed: open it again")
        with self._lock:
            self._time_ms = self._clock_ms() if is_whole else self._time_ms or self._clock_ms()
            self._buffer.update(changes)
            self._gone += gone
            self._offset, self._is_due = offset, True
            if self._is_marked:
                self._due_stamp, self._is_marked = self._stamp, False
            self._bytes += _bytes_of(changes)
        if self._is_full():
            self._write_out()
            if offset - self._flushed >= FLUSH_ENTRIES:
                self._begin_flush()

    def write_in_order(self, keys: Sequence[bytes], values: Sequence[bytes | None], offset: int) -> None:
        """As the port says; not through the buffer, which would sort them again, and hold what hardly any read will want.
        Raises StateError."""
        if not self._is_open:
            raise StateError(f"the store {self.path} was closed: open it again")
        self._write_out()
        with self._lock:
            super().write_in_order(keys, values, offset)
            self._written = offset
        if offset - self._flushed >= FLUSH_ENTRIES:
            self._begin_flush()

    def _is_full(self) -> bool:
        if len(self._buffer) >= MOST_KEYS or self._offset - self._written >= MOST_ENTRIES:
            return True
        most = min(MOST_BYTES, MOST_BYTES_ALL // max(1, len(self._budget.buffered)))
        if self._bytes >= most:
            self._bytes = _bytes_of(self._buffer)  # keys that were written again were counted again
        return self._bytes >= most

    def _write_out(self) -> None:
        """RocksDB has everything. Raises StateError."""
        with self._lock:
            if self._is_due:
                self._put(self._buffer, self._offset, self._time_ms, self._due_stamp, self._gone)
                self._buffer, self._gone, self._bytes, self._due_stamp, self._is_due = {}, [], 0, None, False
                self._written = self._offset

    def _begin_flush(self) -> None:
        """RocksDB writes to the disk what it has, beside the worker. Raises StateError."""
        try:
            self._db.flush(False)
        except Exception as error:
            raise explain(error, self.path) from error
        self._flushed = self._written

    def flush(self) -> None:
        """As the port says. Raises StateError."""
        self._write_out()
        super().flush()

    # ------------------------------------------------------------------ copies and the end

    def ingest(self, files: Sequence[Path]) -> None:
        """See RocksDbStore. Raises StateError, StoreDamaged."""
        super().ingest(files)
        self._written = self._flushed = self._offset

    def copy_to(self, folder: Path) -> None:
        """See `state.store.protocol.TakesCopies`. Raises StateError."""
        self._write_out()
        super().copy_to(folder)

    def close(self) -> None:
        """See RocksDbStore. Raises StateError."""
        if self._is_open:
            self._is_open = False
            self._budget.buffered.discard(self.path)
            try:
                self._write_out()
            finally:
                super().close()


def _bytes_of(changes: Mapping[bytes, bytes | None]) -> int:
    """About what they take in a buffer."""
    values = changes.values()
    in_values = sum(map(len, filter(None, values)))
    return ENTRY_BYTES * len(changes) + sum(map(len, changes)) + in_values
