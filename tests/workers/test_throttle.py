"""The restore budget: over any time no more is read than the rate allows, and what is allowed can be read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.worker.throttle import BURST_MS, TokenBucket


@given(
    rate=st.integers(1_000, 10**9),
    steps=st.lists(st.tuples(st.integers(0, 400), st.floats(0, 1)), min_size=1, max_size=100),
    batch=st.integers(1, 10**6),
)
def test_no_more_than_the_rate(rate: int, steps: list[tuple[int, float]], batch: int) -> None:
    """A reader that takes what it is allowed, rounded up to a whole batch, as fetches are."""
    bucket, now, read = TokenBucket(rate), 0, 0
    for wait, share in steps:
        now += wait
        allowed = bucket.step(now)
        assert allowed is not None
        if allowed:
            taken = -(-int(allowed * share) // batch) * batch
            bucket.step(now, taken)
            read += taken
        assert read <= rate * (now + BURST_MS) / 1000 + batch


@given(rate=st.integers(1_000, 10**9))
def test_a_reader_that_waits_gets_its_rate(rate: int) -> None:
    bucket, read = TokenBucket(rate), 0
    for now in range(0, 20_001, 100):
        taken = bucket.step(now) or 0
        bucket.step(now, taken)
        read += taken
    assert read >= rate * 20 * 0.99


def test_a_debt_is_paid_first() -> None:
    bucket = TokenBucket(1_000)
    bucket.step(0, 3_000)
    assert bucket.step(2_400) == 0 and bucket.step(2_600) == 100


def test_no_limit() -> None:
    bucket = TokenBucket(0)
    assert bucket.step(0) is None and bucket.step(1, 10**12) is None
