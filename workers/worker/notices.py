"""The notices of a worker for operators, as its heartbeats carry them.

One rule: however many lines there are, and however long an error of the app is, a coordinator takes them. A text that is too long for a
message ends the session, and the worker would be out of the group for as long as the notice stands. Used by worker.py.
"""

from __future__ import annotations

from collections.abc import Sequence

LINES_MAX, LINE_MAX = 50, 1_000  # of characters; together well below messages.TEXT_MAX, as the line adds one of its own


def joined(lines: Sequence[str]) -> str:
    """One text of these lines. An error of the app may have several lines, which become one."""
    more = len(lines) - LINES_MAX
    shown = [_shortened(" ".join(line.split())) for line in lines[:LINES_MAX]]
    return "\n".join([*shown, f"and {more} more"] if more > 0 else shown)


def _shortened(line: str) -> str:
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..."
