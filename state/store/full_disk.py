"""Whether a store that takes no more just now waits for its own flushes, or for a disk that is full.

One rule: what waits within RocksDB holds the interpreter, so that no thread of the process runs meanwhile. For flushes that is a moment; a
full disk lasts, and RocksDB would wait for it as long as it does. So a write is first tried without waiting. Used by `rocksdb`.
"""

from __future__ import annotations

import os
from pathlib import Path

from state.errors import DirectoryFull


def is_stall(error: Exception) -> bool:
    """A write that was not to wait would have had to."""
    return "write stall" in str(error).lower()


def refuse_full(path: Path, flush_bytes: int) -> None:
    """Raises DirectoryFull where no flush of that size fits on the disk."""
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < flush_bytes:
        raise no_space(path, f"less than {flush_bytes >> 20} MiB are free")


def no_space(path: Path, reason: str) -> DirectoryFull:
    return DirectoryFull(f"the store {path} has no space left: free some space on its disk ({reason})")
