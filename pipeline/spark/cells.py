"""The cells of one task, as Spark brings them, in the order of their places.

One rule: nothing goes out before all of them have come, by the ends of all groups that were read: Spark may end the input of a
task early, without an error. In memory lie as many bytes as the limit allows, the others on the executor's disk, in a file without
a name; so nothing is left of them whatever becomes of the process. In the flow: `reading` -> Spark -> here -> `merging`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

from orchestrator.errors import OrchestratorError
from pipeline.spark.runs import Cell, End, Moved, Place


class InputEnded(OrchestratorError):
    """Spark gave a task less than was read for it."""


class OnDisk(NamedTuple):
    """Where a cell lies in the file."""

    start: int
    size: int


class Cells:
    """Of one task; `limit_bytes` is what they may take of memory; `groups`: of how many groups of items they come."""

    def __init__(self, limit_bytes: int, groups: int) -> None:
        self._limit_bytes = limit_bytes
        self._groups = groups
        self._held_bytes = self._file_bytes = 0
        self._file: IO[bytes] | None = None

    def in_order(self, moved: Iterable[Moved]) -> Iterator[Cell]:
        """All of them, once the last one has come. What has gone out is not held any more. Raises InputEnded."""
        waiting: list[tuple[Place, bytes | OnDisk]] = []
        ended = wanted = 0
        for place, cell in moved:
            if isinstance(place, End):
                ended, wanted = ended + 1, wanted + place.cells
            else:
                waiting.append((place, self._kept(cell)))
        if (ended, wanted) != (self._groups, len(waiting)):
            raise InputEnded(
                f"Spark ended the input of a task early: {len(waiting)} of {wanted} cells of {ended} groups came, and there are "
                f"{self._groups} groups; the task wrote nothing, run the command again"
            )
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
