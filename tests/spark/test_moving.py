"""Cells come to their tasks, and on their way no more of them is in memory than the limit allows."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pipeline.spark import moving
from pipeline.spark.moving import moved, pieces
from pipeline.spark.runs import Cell, Place

SIZE, COUNT, TASKS = 1_000, 500, 7


def cells(pids: Iterable[int]) -> Iterator[Cell]:
    for number, pid in enumerate(pids):
        yield Place(pid, 0, number, 0, number), bytes([number % 251]) * SIZE


@pytest.mark.parametrize("tasks", [1, TASKS, 300])
def test_what_is_held_has_a_limit_however_few_tasks_it_is_for(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    monkeypatch.setattr(moving, "HELD_BYTES", 20 * SIZE)
    taken, given, most = 0, 0, 0

    def counted() -> Iterator[Cell]:
        nonlocal taken, most
        for one in cells(number % tasks for number in range(COUNT)):
            most = max(most, taken - given)
            taken += 1
            yield one

    found: dict[int, list[Cell]] = {}
    sent = pieces(counted())
    for number, piece in zip(sent, sent, strict=True):
        some = pickle.loads(piece)
        given += len(some)
        found.setdefault(struct.unpack("!q", number)[0], []).extend(some)
    assert most <= 20
    assert sorted(one for some in found.values() for one in some) == sorted(cells(n % tasks for n in range(COUNT)))
    assert all(place.pid == pid for pid, some in found.items() for place, _ in some)


@pytest.mark.spark
def test_every_task_gets_its_cells_and_one_without_any_is_there(spark: Any) -> None:
    listed = list(cells([5, 1, 5]))

    def read(_: Iterable[int]) -> Iterator[Cell]:
        yield from listed

    def mine(number: int, found: Iterable[Cell]) -> Iterator[tuple[int, list[Cell]]]:
        yield number, sorted(found)

    found = moved(spark.sparkContext.parallelize(range(3), 3).mapPartitions(read), TASKS)
    expected = {1: [listed[1]] * 3, 5: [listed[0]] * 3 + [listed[2]] * 3}
    assert dict(found.mapPartitionsWithIndex(mine).collect()) == {
        number: expected.get(number, []) for number in range(TASKS)
    }
