"""Careful calls, of which a worker has one at a time, take turns among its tasks."""

from __future__ import annotations

from workers.worker.turns import in_turn


def test_every_task_has_its_turn() -> None:
    """Each round the first of the list that can call does: none of three waits for more than two others."""
    last: str | None = None
    began: list[str] = []
    for _ in range(6):
        last = in_turn(["a", "b", "c"], last)[0]
        began.append(last)
    assert began == ["a", "b", "c"] * 2
    assert in_turn(["a", "c"], "b") == ["a", "c"], "it was given up meanwhile"
    assert in_turn([], "a") == []
