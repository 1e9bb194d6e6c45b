"""How answers are shown: JSON for programs, aligned columns for people. One rule: stdout is for the answer alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from orchestrator.names import counted

WIDTH = 100  # characters that a line of a table may have
DIFFERENCES = 20  # of a check, where no limit is given
CLEAR = "\r\x1b[K"  # of a terminal: the line that the cursor is in


def show_json(facts: dict[str, Any]) -> None:
    print(json.dumps({"schema": 1, **facts}), flush=True)


def table(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """Columns as wide as they must be. A cell of several words (a list) has each on a line of its own where the lines
    would be wider than a terminal."""
    wide = _aligned([_cells(row, ", ") for row in rows], heads)
    if all(len(line) <= WIDTH for line in wide):
        return "\n".join(wide)
    lines: list[list[str]] = []
    for row in rows:
        columns = [cell.split("\n") for cell in _cells(row, "\n")]
        lines += [list(line) for line in zip_longest(*columns, fillvalue="")]
    return "\n".join(_aligned(lines, heads))


def _cells(row: Sequence[object], between: str) -> list[str]:
    return [between.join(cell) if isinstance(cell, list) else "-" if cell is None else str(cell) for cell in row]


def _aligned(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> list[str]:
    text = [list(heads), *rows]
    widths = [max(len(row[i]) for row in text) for i in range(len(heads))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in text]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def warn_of_idle(workers: int, tasks: int, say: Callable[[str], None] = _say) -> None:
    """A line on standard error where there are more workers than tasks."""
    if workers > tasks:
        many = f"{counted(workers, 'worker')} for {counted(tasks, 'task')}"
        one = workers - tasks == 1
        say(f"warning: {many}: {workers - tasks} of them {'runs' if one else 'run'} none, but may hold copies")


def shown_time(time_ms: int) -> str:
    """A time of the wall, to the second."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
