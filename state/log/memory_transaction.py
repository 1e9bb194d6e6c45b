"""A transaction that is open in the log in memory, as a slow or dead producer leaves it.

One rule: its records have their offsets from the beginning, and are seen, or never, when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from state.log.batches import Batch
from state.log.memory_parts import Entries
from state.log.protocol import Partition


class Source(Protocol):
    """What it needs of a log."""

    now_ms: Callable[[], int]

    def part(self, partition: Partition) -> Entries: ...

    def mark(self, part: Entries, committed: bool) -> None: ...

    def wake(self) -> None: ...


class OpenTransaction:
    """Holds the readable end of its partitions back until it is committed or aborted."""

    def __init__(self, log: Source, built: Mapping[Partition, Sequence[Batch]]) -> None:
        self._log = log
        self._held: list[tuple[Entries, int, Sequence[Batch]]] = []
        for partition, listed in built.items():
            part = log.part(partition)
            base = part.take(listed)
            part.open.append(base)
            self._held.append((part, base, listed))

    def commit(self) -> None:
        self._finish(committed=True)

    def abort(self) -> None:
        self._finish(committed=False)

    def _finish(self, *, committed: bool) -> None:
        held, self._held = self._held, []
        for part, base, listed in held:
            part.open.remove(base)
            if committed:
                part.show(listed, base, self._log.now_ms())
            self._log.mark(part, committed)
            part.sort()
        self._log.wake()
