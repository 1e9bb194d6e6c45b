"""How many records a turn takes. Laws: it is short where its size makes it long; where a call costs the same for any number, the size
grows; what is held up once changes little; and work that changes is followed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.calls.blame import TURN_S
from workers.tasks.turn_size import TurnSize

MOST = 500
Cost = Callable[[int], float]


def turns(cost: Cost, count: int, size: TurnSize | None = None, most: int = MOST) -> list[tuple[int, float]]:
    """Sizes and seconds of turns that follow each other."""
    size, found = size or TurnSize(), []
    for _ in range(count):
        records = size.records
        assert 1 <= records <= most
        found.append((records, took := cost(records)))
        size.ended(records, took, most)
    return found


def rate(found: list[tuple[int, float]]) -> float:
    return sum(records for records, _ in found) / sum(took for _, took in found)


@pytest.mark.parametrize("call_s", [0.03, 0.06, 0.4, 3.0])
@pytest.mark.parametrize("most", [MOST, 1 << 15])
def test_a_call_that_costs_the_same_for_any_number_takes_many(call_s: float, most: int) -> None:
    """It went down to one record, and stayed there."""
    found = turns(lambda records: call_s + 1e-6 * records, 60, most=most)
    assert rate(found[-40:]) > 0.85 * most / (call_s + 1e-6 * most)


@pytest.mark.parametrize("record_s", [1e-4, 1e-3, 1e-2, 0.2])
def test_records_that_take_their_time_make_short_turns(record_s: float) -> None:
    found = turns(lambda records: record_s * records, 60)
    longest = sorted(took for _, took in found[1:])
    assert longest[len(longest) // 2] <= max(TURN_S, record_s) * 1.01 and longest[-1] <= max(TURN_S, record_s) * 2.01


@given(call_s=st.floats(0, 2), record_s=st.floats(1e-7, 0.3))
def test_half_of_a_turn_at_least_is_for_its_records_or_it_is_short(call_s: float, record_s: float) -> None:
    found = turns(lambda records: call_s + record_s * records, 100)[-40:]
    right = max(1, min(MOST, int(max(TURN_S, call_s) / record_s)))
    assert rate(found) >= 0.4 * right / (call_s + record_s * right)
    assert max(took for _, took in found) <= 4 * (call_s + max(TURN_S, call_s, record_s))


@pytest.mark.parametrize("seed", range(20))
def test_times_that_vary(seed: int) -> None:
    chance = random.Random(seed)
    asked = turns(lambda records: chance.uniform(0.1, 0.4) + 2e-5 * records, 300)
    assert rate(asked) > 0.6 * MOST / 0.26
    waits = turns(lambda records: chance.expovariate(5) + 2e-5 * records, 300)
    assert rate(waits) > 0.3 * MOST / 0.21
    sums = [took for _, took in turns(lambda records: 0.01 * records * chance.uniform(0.5, 1.5), 300)]
    assert sum(sums) / len(sums) < 3 * TURN_S
    fast = turns(lambda records: 0.3 if chance.random() < 0.05 else 6e-6 * records, 300)
    assert sum(records for records, _ in fast) > 0.9 * MOST * len(fast)


def test_what_comes_one_by_one_says_nothing_of_many() -> None:
    """A topic that is alive begins with turns of one record."""
    size = TurnSize()
    for _ in range(50):
        size.ended(1, 0.4, MOST)
    assert rate(turns(lambda records: 0.4, 30, size)[-15:]) > 0.85 * MOST / 0.4
    size = TurnSize()
    for _ in range(50):
        size.ended(1, 0.02, MOST)
    assert size.records <= 64, "five hundred of them would be one call of ten seconds"


def test_a_size_that_is_known_stays_while_little_waits() -> None:
    size = TurnSize()
    turns(lambda records: 0.4, 60, size)
    for _ in range(50):
        size.ended(1, 0.4, MOST)
    assert size.records >= MOST // 2


@pytest.mark.parametrize("seed", range(10))
def test_two_kinds_of_work_in_turns(seed: int) -> None:
    """The one that is long by its records does not stay long because of the one that is not."""
    chance, size = random.Random(seed), TurnSize()
    found = [took for _, took in turns(lambda records: 0.02 * records if chance.random() < 0.3 else 0.4, 300, size)]
    assert sum(found) / len(found) < 2, "more where each that is long is taken for an exception"


def test_work_that_changes_is_followed() -> None:
    size = TurnSize()
    for _ in range(3):
        assert rate(turns(lambda records: 0.4, 60, size)[-30:]) > 0.85 * MOST / 0.4
        assert max(took for _, took in turns(lambda records: 0.01 * records, 60, size)[-30:]) <= 0.11
        assert turns(lambda records: 1e-6 * records, 60, size)[-1][0] == MOST
