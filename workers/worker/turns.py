"""Whose turn it is in the record loop, and whose calls ended in a way of their own.

One rule: no task waits for all the calls of another. The record loop asks at the beginning of each round, and every commit interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, TypeVar

from pipeline.process import TaskProcess

T = TypeVar("T")


class Runs(Protocol):
    """A task, as far as its calls go."""

    process: TaskProcess | None


def in_turn(runs: list[T], last: T | None) -> list[T]:
    """The tasks, beginning behind the one whose careful calls began last: there is one such call at a time in a worker."""
    behind = runs.index(last) + 1 if last in runs else 0
    return runs[behind:] + runs[:behind]


def died(calls: Mapping[T, asyncio.Task[None]]) -> list[tuple[T, BaseException | None]]:
    """Of the calls under way those that have ended without a word: cancelled before they began (None), or by what user code
    raised that is no Exception."""
    return [(whose, None if one.cancelled() else one.exception()) for whose, one in calls.items() if one.done()]


def undo(run: Runs, calls: asyncio.Task[None]) -> None:
    """Ends the calls of a task for good, also those whose functions, or clients that they await, make another error of a
    cancellation."""
    if run.process is not None:
        run.process.on_error.are_undone = True
    calls.cancel()
