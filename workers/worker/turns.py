"""Whose turn it is in the record loop.

One rule: no task waits for all the calls of another. Pure; the record loop asks at the beginning of each round.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def in_turn(runs: list[T], last: T | None) -> list[T]:
    """The tasks, beginning behind the one whose careful calls began last: there is one such call at a time in a worker."""
    behind = runs.index(last) + 1 if last in runs else 0
    return runs[behind:] + runs[:behind]
