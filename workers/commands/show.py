"""How answers are shown: JSON for programs, aligned columns for people. One rule: stdout is for the answer alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def show_json(facts: dict[str, Any]) -> None:
    print(json.dumps({"schema": 1, **facts}), flush=True)


def table(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """Columns as wide as they must be."""
    text = [list(heads), *[[("-" if cell is None else str(cell)) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in text) for i in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in text)


def shown_time(time_ms: int) -> str:
    """A time of the wall, to the second."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


def counted(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
