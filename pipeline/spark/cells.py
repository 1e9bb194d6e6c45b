"""The cells of one task, as Spark brings them, in the order of their places.

One rule: in memory lie as many bytes of them as the limit allows, the others on the executor's disk, in a file without a name; so
nothing is left of them whatever becomes of the process. In the flow: `reading` -> Spark -> here -> `merging`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

from pipeline.spark.runs import Cell, Place


class OnDisk(NamedTuple):
    """Where a cell lies in the file."""

    start: int
    size: int


class Cells:
    """Of one task; `limit_bytes` is what they may take of memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = self._file_bytes = 0
        self._file: IO[bytes] | None = None

    def in_order(self, cells: Iterable[Cell]) -> Iterator[Cell]:
        """All of them, once the last one has come. What has gone out is not held any more."""
        waiting: list[tuple[Place, bytes | OnDisk]] = [(place, self._kept(cell)) for place, cell in cells]
        waiting.sort(key=lambda one: one[0], reverse=True)
        if self._file is not None:
            self._file.flush()
        while waiting:
            place, kept = waiting.pop()
            yield place, kept if isinstance(kept, bytes) else self._read(kept)

    def close(self) -> None:
        """Its file is gone."""
        if self._file is not None:
            self._file.close()

    def _kept(self, cell: bytes) -> bytes | OnDisk:
        if self._held_bytes + len(cell) <= self._limit_bytes:
            self._held_bytes += len(cell)
            return cell
        if self._file is None:
            local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]  # Spark passes its disks to its workers
            self._file = tempfile.TemporaryFile(prefix="stream-orchestrator-", dir=local or None)  # noqa: SIM115 - `close` does
        self._file.write(cell)
        self._file_bytes += len(cell)
        return OnDisk(self._file_bytes - len(cell), len(cell))

    def _read(self, where: OnDisk) -> bytes:
        assert self._file is not None
        return os.pread(self._file.fileno(), where.size, where.start)
