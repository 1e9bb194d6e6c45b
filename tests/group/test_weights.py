"""Measured weights: noise in a band changes nothing, a real change arrives, and a rate is not guessed."""

from __future__ import annotations

from itertools import pairwise
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import WrongUse
from orchestrator.member.load_meter import RateMeter, weigh
from orchestrator.model import Task, TaskId
from orchestrator.weights import parse_given, strange, with_given

UNIT = 100
MEASURES = st.floats(1, 1e6)


@given(base=MEASURES, noise=st.lists(st.floats(0.85, 1.18), min_size=1, max_size=50))
def test_noise_is_not_followed(base: float, noise: list[float]) -> None:
    """A measure that goes up and down by a sixth moves a weight once at most, and never back."""
    weights = [weigh(1, base, UNIT)]
    for share in noise:
        weights.append(weigh(weights[-1], base * share, UNIT))
    assert sum(1 for before, after in pairwise(weights) if before != after) <= 1, weights


@given(before=st.integers(0, 10).map(lambda n: 1 << n), measured=MEASURES)
def test_a_weight_is_near_its_measure_and_a_fixed_point(before: int, measured: float) -> None:
    weight = weigh(before, measured, UNIT)
    assert weigh(weight, measured, UNIT) == weight
    assert max(1, measured / UNIT) / 1.7 <= weight <= max(1, measured / UNIT) * 1.7


def test_the_band_is_wider_than_the_step() -> None:
    """From 4 up at 1.7 times, and only far below that down again."""
    assert [weigh(4, UNIT * m, UNIT) for m in (2.4, 4, 6.7)] == [4, 4, 4]
    assert weigh(4, UNIT * 6.8, UNIT) == 8
    assert weigh(8, UNIT * 4.8, UNIT) == 8 and weigh(8, UNIT * 4.7, UNIT) == 4


def test_a_rate_is_known_after_half_a_minute_and_follows_the_last_minute() -> None:
    meter, task = RateMeter(), TaskId(0, 0)
    rates = [meter.rate(task, 1, 50 * second, second * 1000) for second in range(100)]
    assert rates[29] is None and all(r is not None and isclose(r, 50) for r in rates[30:])
    later = [meter.rate(task, 1, 5000, second * 1000) for second in range(100, 170)]
    assert later[-1] == 0


def test_another_epoch_begins_anew() -> None:
    meter, task = RateMeter(), TaskId(0, 0)
    for second in range(40):
        meter.rate(task, 1, 50 * second, second * 1000)
    assert meter.rate(task, 2, 10, 40_000) is None
    assert meter.rate(task, 2, 5, 41_000) is None, "a count that falls is another count"


def test_given_weights() -> None:
    tasks = [Task(TaskId(0, 0)), Task(TaskId(0, 1)), Task(TaskId(1, 0))]
    given_ = parse_given("0=2, 0_1=5")
    assert [t.weight for t in with_given(tasks, given_)] == [2, 5, 1]
    assert strange(tasks, parse_given("0=2,7=1,1_9=3")) == ["7", "1_9"]
    for wrong in ("0", "0=", "0=0", "a=1", "0_1_2=3", "0=2,0=3", "_=1", f"0={'9' * 5_000}"):
        with pytest.raises(WrongUse):
            parse_given(wrong)
