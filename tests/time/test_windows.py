"""Which windows a time lies in: sizes, offsets, and days of a place whose clocks change."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Hopping, Tumbling

PARIS = ZoneInfo("Europe/Paris")
HOUR = 3_600_000


def at(text: str, zone: ZoneInfo = PARIS) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def window(windows: Tumbling, ms: int) -> tuple[int, int]:
    (start,) = windows.starts(ms)
    return start, windows.end_of(start)


def test_offsets() -> None:
    shifted = Tumbling(days=1, offset=timedelta(hours=6))
    assert window(shifted, 30 * HOUR) == (30 * HOUR, 54 * HOUR)
    assert window(shifted, 30 * HOUR - 1) == (6 * HOUR, 30 * HOUR)
    assert window(shifted, 3 * HOUR) == (0, 6 * HOUR)  # none begins before 0


def test_days_of_a_place() -> None:
    days = Tumbling(days=1, zone="Europe/Paris")
    assert window(days, at("2024-06-15T12:00")) == (at("2024-06-15T00:00"), at("2024-06-16T00:00"))
    spring = window(days, at("2024-03-31T12:00"))
    assert spring[1] - spring[0] == 23 * HOUR and spring[0] == at("2024-03-31T00:00")
    autumn = window(days, at("2024-10-27T12:00"))
    assert autumn[1] - autumn[0] == 25 * HOUR and autumn[1] == at("2024-10-28T00:00")
    assert window(days, 0) == (0, 23 * HOUR)
    shop = Tumbling(days=1, zone="Europe/Paris", offset=timedelta(hours=6))
    assert window(shop, at("2024-03-31T05:59")) == (at("2024-03-30T06:00"), at("2024-03-31T06:00"))


@given(st.integers(0, 4_000_000_000_000), st.sampled_from([1, 2, 7]), st.integers(0, 23))
def test_days_follow_each_other(ms: int, days: int, hours: int) -> None:
    windows = Tumbling(days=days, zone="America/New_York", offset=timedelta(hours=hours))
    start, end = window(windows, ms)
    assert start <= ms < end and window(windows, end)[0] == end
    assert window(windows, start) == (start, end) and window(windows, end - 1) == (start, end)


@given(st.integers(0, 1_000), st.integers(1, 30), st.integers(1, 30))
def test_hopping(ms: int, size: int, every: int) -> None:
    size, every = max(size, every), min(size, every)
    windows = Hopping(timedelta(milliseconds=size), every=timedelta(milliseconds=every))
    assert windows.starts(ms) == [start for start in range(0, ms + 1, every) if start <= ms < start + size]


def follow_each_other(windows: Tumbling, ms: int) -> None:
    start, end = window(windows, ms)
    assert start <= ms < end and window(windows, end)[0] == end
    assert window(windows, start) == (start, end) and window(windows, end - 1) == (start, end)


def test_a_day_that_begins_in_an_hour_of_a_change() -> None:
    late_start = Tumbling(days=1, zone="Europe/Paris", offset=timedelta(hours=2, minutes=30))
    spring, autumn = at("2024-03-31T00:00"), at("2024-10-27T00:00")  # at 2:00 it is 3:00; at 3:00 it is 2:00
    for midnight in (spring, autumn):
        for quarter in range(100):
            follow_each_other(late_start, midnight + quarter * 900_000)


def test_times_beyond_the_calendar() -> None:
    """Microseconds taken for milliseconds lie there."""
    days = Tumbling(days=1, zone="Europe/Paris")
    for ms in (250_560_000_000_000, 253_402_300_799_999, 1_700_000_000_000_000, (1 << 63) - 1):
        follow_each_other(days, ms)
