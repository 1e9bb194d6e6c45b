"""The short form of `make bench-yardstick`: learners against none in the same scenarios, and the moves of one change."""

from __future__ import annotations

import pytest

from orchestrator.simulator.benchmark.yardstick import LEARNING, SEED, Totals, moves, play


@pytest.mark.long
def test_learners_leave_a_fraction_of_the_cold_hand_overs_and_of_the_downtime() -> None:
    """Ten of the hundred scenarios, with the invariants checked after every event; they are the same on every machine."""
    without, learners, snapshots = (
        sum((play(SEED * 1_000 + number, *how) for number in range(10)), Totals()) for how in LEARNING.values()
    )
    assert without.cold > 20 and without.downtime_ticks > 100, "the scenarios must hurt"
    assert learners.cold <= 0.4 * without.cold and learners.downtime_ticks <= 0.6 * without.downtime_ticks
    assert snapshots.downtime_ticks <= learners.downtime_ticks
    for totals in (learners, snapshots):
        assert totals.cold == totals.cold_announced, "cold only where a learner was ready by its predicted time"


@pytest.mark.parametrize("verb", ["join", "leave"])
@pytest.mark.parametrize("size", [(10, 100), (20, 200)])
def test_a_change_moves_what_is_needed_and_no_more(verb: str, size: tuple[int, int]) -> None:
    _, moved, needed = moves(*size, verb)
    assert moved == needed
