"""The Store port: the local copy of one table of one task. RocksDB in production, memory as its twin.

One rule: the data and the changelog offset it stands for are written in one batch, so whatever survives a crash names
exactly the changelog position it reflects (facts: WAL off, offset in the same column family).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

Range = tuple[bytes, bytes]  # keys from the first one on, before the second one


class Store(Protocol):
    """Raw bytes to raw bytes, in key-byte order."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop in key-byte order; None means from the first, to the last."""

    def write(
        self,
        changes: Mapping[bytes, bytes | None],
        offset: int,
        *,
        is_whole: bool = True,
        gone: Sequence[Range] = (),
    ) -> None:
        """Applies changes (None deletes) and sets the changelog offset, in one atomic batch, sorted by key. `is_whole`:
        the store holds all of its changelog with them, as an owner's does; the time of its stamp is now. A replay's time
        stays what it was (the first write's where there was none): deletions that it has not read yet may be forgotten.
        `gone`: ranges of which `changes` deletes all that the store has, so it may delete each of them at once."""

    def write_in_order(self, keys: Sequence[bytes], values: Sequence[bytes | None], offset: int) -> None:
        """`write` of what a replay brings (`is_whole` is False), in many pieces: the keys of each are in order."""

    def whole_at(self, time_ms: int) -> None:
        """Notes that the store held all that its changelog had at `time_ms`; it is written with the next write."""

    @property
    def offset(self) -> int:
        """The changelog position this data stands for: the offset after the last change; 0 for an empty store."""

    def stamp(self) -> Mapping[str, str]:
        """Returns what the store says of its origin: what was given when it was made, and `time_ms`: when it was last known
        to hold all of its changelog; "0" for an empty one."""

    def mark(self, name: str, value: str) -> None:
        """Changes one entry of the stamp; it is written with the next write."""

    def size_bytes(self) -> int:
        """About how much it holds on disk and in memory."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class TakesCopies(Store, Protocol):
    """A store on disk that can be copied while it is written."""

    def copy_to(self, folder: Path) -> None:
        """Copies the store as it is at this moment, what is not flushed yet included, into a folder that is not there. Files
        are shared with the store, so it takes milliseconds. May run in a thread. Raises StateError."""


@runtime_checkable
class TakesFiles(Store, Protocol):
    """A store on disk: it takes over the files of a snapshot."""

    @property
    def path(self) -> Path: ...

    def is_empty(self) -> bool: ...

    def ingest(self, files: Sequence[Path]) -> None:
        """Takes over sorted files that hold data, offset and stamp (`state.snapshot` writes them); they stay. Only into an
        empty store. Raises StateError, StoreDamaged."""
