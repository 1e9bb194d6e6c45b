"""The Store port: the local copy of one table of one task. RocksDB in production, memory as its twin.

One rule: the data and the changelog offset it stands for are written in one batch, so whatever survives a crash names
exactly the changelog position it reflects (facts: WAL off, offset in the same column family).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol


class Store(Protocol):
    """Raw bytes to raw bytes, in key-byte order."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop in key-byte order; None means from the first, to the last."""

    def write(self, changes: Mapping[bytes, bytes | None], offset: int) -> None:
        """Apply changes (None deletes) and set the changelog offset, in one atomic batch, sorted by key."""

    @property
    def offset(self) -> int:
        """The changelog position this data stands for: the offset after the last change; 0 for an empty store."""

    def stamp(self) -> Mapping[str, str]:
        """What the store says of its origin: `log_id`, `topic_id`, `time_ms`, as given when it was opened."""

    def mark(self, name: str, value: str) -> None:
        """Changes one entry of the stamp; it is written with the next write."""

    def size_bytes(self) -> int:
        """About how much it holds on disk and in memory."""

    def flush(self) -> None: ...

    def close(self) -> None: ...
