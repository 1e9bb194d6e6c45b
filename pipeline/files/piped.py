"""Lines of standard input as they come. One rule: who reads them knows whether the next one is there already, so that what
another program writes slowly does not wait for what it has yet to write. Used by `produce`.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator
from io import BufferedIOBase

CHUNK = 1 << 18


class Piped:
    """The lines of a file. What has no descriptor (a test's) is all there."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []  # of a line that has no end yet
        self._is_over = False
        try:
            self._descriptor: int | None = file.fileno()
        except OSError:
            self._descriptor = None

    def is_quiet(self, for_s: float = 0) -> bool:
        """Whether the next line, or the end, would have to be waited for; after so many seconds without anything."""
        while not self._lines and not self._is_over:
            if self._descriptor is not None and not select.select([self._descriptor], [], [], for_s)[0]:
                return True
            self._read()
        return False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while self._lines:
                yield self._lines.popleft()
            if self._is_over:
                return
            self._read()

    def _read(self) -> None:
        """Reads what is there; waits where nothing is."""
        data = self._file.read1(CHUNK)
        *ended, begun = data.split(b"\n")
        for line in ended:
            self._lines.append(b"".join((*self._begun, line, b"\n")))
            self._begun.clear()
        if begun:
            self._begun.append(begun)
        if not data:
            self._is_over = True
            if self._begun:
                self._lines.append(b"".join(self._begun))
