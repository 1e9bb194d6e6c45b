"""The store in memory: the twin of the RocksDB store, for simulation and tests, and for tables that need no disk.

One rule: it answers exactly as the store on disk does; both pass the same contract tests. Keys are kept sorted, so a
range costs what it reads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from state.errors import StateError
from state.store.protocol import Range

_REBUILD_FROM = 64
CHECKPOINT_FILE = "memory-store.json"


class MemoryStore:
    """See `state.store.protocol.Store`."""

    def __init__(self, *, stamp: Mapping[str, str], clock_ms: Callable[[], int] = lambda: 0) -> None:
        self._stamp = {key: value for key, value in stamp.items() if key != "time_ms"}
        self._clock_ms = clock_ms
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._offset = 0
        self._time_ms = 0
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._values.get(key)

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Reads the store as it was at the call, whatever is written meanwhile."""
        self._check_open()
        keys = self._keys
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if stop is None else bisect_left(keys, stop)
        return self._walk([(key, self._values[key]) for key in keys[first:last]])

    def _walk(self, pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for pair in pairs:
            if self._closed:
                raise StateError("the store was closed while it was being read")
            yield pair

    def write(
        self, changes: Mapping[bytes, bytes | None], offset: int, *, is_whole: bool = True, gone: Sequence[Range] = ()
    ) -> None:
        self._check_open()
        values = self._values
        for start, stop in gone:
            left = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
            changes = {**dict.fromkeys(left), **changes}
        touched = [key for key, value in changes.items() if (value is None) == (key in values)]
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        if len(touched) > _REBUILD_FROM:
            self._keys = sorted(values)
        else:
            for key in touched:
                if key in values:
                    insort(self._keys, key)
                else:
                    del self._keys[bisect_left(self._keys, key)]
        if is_whole or not self._time_ms:
            self._time_ms = self._clock_ms()
        self._offset = offset

    def write_in_order(self, keys: Sequence[bytes], values: Sequence[bytes | None], offset: int) -> None:
        self.write(dict(zip(keys, values, strict=True)), offset, is_whole=False)

    def whole_at(self, time_ms: int) -> None:
        self._time_ms = max(self._time_ms, time_ms)

    @property
    def offset(self) -> int:
        return self._offset

    def stamp(self) -> Mapping[str, str]:
        return {**self._stamp, "time_ms": str(self._time_ms)}

    def mark(self, name: str, value: str) -> None:
        self._stamp = {**self._stamp, name: value}

    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._values.items())

    def flush(self) -> None:
        self._check_open()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("the store was closed: open it again")
