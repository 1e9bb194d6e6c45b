"""A copy rests as long as it has to wait for a processor: what else the machine does goes first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.model import TaskId
from workers.worker.giving_way import REST_MOST_S, GivingWay, waits


@pytest.mark.parametrize(
    ("waited_s", "least_s", "rest"),
    [(0.0, 0.0, 0.0), (0.0, 0.001, 0.001), (0.004, 0.001, 0.008), (1.0, 0.001, REST_MOST_S), (-0.001, 0.0, 0.0)],
)
async def test_it_rests_twice_as_long_as_it_waited_within_bounds(waited_s: float, least_s: float, rest: float) -> None:
    giving_way = GivingWay()
    assert giving_way.rest_s(waited_s, least_s) == rest
    giving_way.expect(TaskId(0, 0))
    assert giving_way.rest_s(waited_s, least_s) == least_s, "who is taken over needs the loop"


def test_what_it_waited_is_of_the_piece_alone() -> None:
    """Not of what the loop does between two pieces."""
    now = [0.0]

    def pieces() -> Iterator[int]:
        for waited in (0.25, 0.0, 0.5):
            now[0] += waited
            yield 1

    found: list[float] = []
    for waited in waits(pieces(), lambda: now[0]):
        found.append(waited)
        now[0] += 10.0
    assert found == [0.25, 0.0, 0.5]
