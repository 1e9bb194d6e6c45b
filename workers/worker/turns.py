"""Whose turn it is in the record loop, and whose calls ended in a way of their own.

One rule: no task waits for all the calls of another. The record loop asks at the beginning of each round, and every commit interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from workers.calls.call_watch import TURN_S

T = TypeVar("T")


def in_turn(runs: list[T], last: T | None) -> list[T]:
    """The tasks, beginning behind the one whose careful calls began last: there is one such call at a time in a worker."""
    behind = runs.index(last) + 1 if last in runs else 0
    return runs[behind:] + runs[:behind]


def died(calls: Mapping[T, asyncio.Task[None]]) -> list[tuple[T, BaseException | None]]:
    """Of the calls under way those that have ended without a word: cancelled before they began (None), or by what user code
    raised that is no Exception."""
    return [(whose, None if one.cancelled() else one.exception()) for whose, one in calls.items() if one.done()]


def adapted(records: int, took_s: float, most: int) -> int:
    """How many records the next turn takes: a batch is one call, which nothing but its size keeps short."""
    if took_s > TURN_S:
        return max(1, int(records * TURN_S / took_s))
    return min(most, records * 2) if took_s < TURN_S / 2 else records
