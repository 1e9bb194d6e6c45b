"""How many rows a stage has come through while it runs: executors write their counts into its folder, the driver adds them up.

One rule: a count is for people alone. Of several attempts at one thing the one that has come furthest counts; where none can be
written, nothing else changes. In the flow: `reading` and `stage` count, `engine` tells, `running` shows.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from orchestrator.clocks import monotonic_s

logger = logging.getLogger("orchestrator.spark")
ROWS, EACH_S = ".rows", 1.0
READ, PROCESSED = "read", "processed"


class RowCount:
    """Of one attempt at `number`: an item that is read, or a task. Written once a second at most, and at its end."""

    def __init__(self, folder: Path, kind: str, number: int) -> None:
        self._path = folder / f"{kind}.{number}.{token_hex(4)}{ROWS}"
        self._rows, self._next_s = 0, 0.0

    def add(self, rows: int) -> None:
        self._rows += rows
        now = monotonic_s()
        if now >= self._next_s:
            self._next_s = now + EACH_S
            self.write()

    def write(self) -> None:
        """Also at the end of the attempt."""
        draft = self._path.with_suffix(".draft")
        try:
            draft.write_text(str(self._rows))
            draft.replace(self._path)
        except OSError as error:  # the stage is over, or the disk is full, which whoever writes rows meets and says
            logger.debug("%s: %s", self._path, error)
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def shown(folder: Path) -> str:
    """The count of the stage with this folder, in words; empty as long as there are no rows."""
    found: dict[str, dict[str, int]] = {}
    for path in folder.glob(f"*{ROWS}"):
        kind, number, _ = path.name.split(".", 2)
        try:
            rows = int(path.read_text())
        except FileNotFoundError:  # the stage has ended meanwhile
            return ""
        of_kind = found.setdefault(kind, {})
        of_kind[number] = max(rows, of_kind.get(number, 0))
    for kind in (PROCESSED, READ):
        if kind in found:
            return f"{sum(found[kind].values()):,} rows {kind}"
    return ""
