"""A store in a dict: what the Driver keeps its tables in, and an instance its global tables."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping


class DictStore:
    """A StoreView over a dict, sorted when a range is asked for."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = None

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._sorted is None:
            self._sorted = sorted(self.data)
        keys = self._sorted
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if stop is None else bisect_left(keys, stop)
        return iter([(key, self.data[key]) for key in keys[first:last]])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                if self.data.pop(key, None) is not None:
                    self._sorted = None
            else:
                if key not in self.data:
                    self._sorted = None
                self.data[key] = value
