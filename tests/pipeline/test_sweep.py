"""What has expired is found in the end, nothing else is, and the store is left alone while nothing of it can have expired."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from pipeline.tables.expiry import STREAM_TIME_KEY, stored, stored_time, written_ms
from pipeline.tables.sweep import KEYS_PER_COMMIT, Sweep

EXPIRE_MS = 1_000


class Kept:
    """A table's stored pairs, and how often they were looked at."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {STREAM_TIME_KEY: stored_time(0)}
        self.looks = 0

    def pairs(self, start: bytes | None) -> Iterable[tuple[bytes, bytes | None]]:
        self.looks += 1
        return ((key, self.data[key]) for key in sorted(self.data) if start is None or key >= start)

    def commit(self, sweep: Sweep, stream_ms: int) -> None:
        for key in sweep.expired(self.pairs, stream_ms):
            assert written_ms(self.data.pop(key)) + EXPIRE_MS <= stream_ms


def test_no_look_while_nothing_can_have_expired() -> None:
    kept, sweep = Kept(), Sweep(EXPIRE_MS)
    kept.data[b"a"] = stored(b"", 100)
    for stream_ms in (100, 500, 1_099):
        kept.data[b"b"] = stored(b"", stream_ms)
        kept.commit(sweep, stream_ms)
        assert kept.looks == 1
    kept.commit(sweep, 1_100)
    assert kept.data.keys() == {STREAM_TIME_KEY, b"b"}
    for stream_ms in range(1_101, 1_225):  # what stays was written at 1,099, and passes are an eighth of its life apart
        kept.commit(sweep, stream_ms)
    assert kept.looks == 2


def test_a_pass_goes_on_where_it_stopped() -> None:
    kept, sweep = Kept(), Sweep(EXPIRE_MS)
    kept.data |= {b"%06d" % number: stored(b"", 0) for number in range(2 * KEYS_PER_COMMIT)}
    for left in (KEYS_PER_COMMIT, 0, 0):
        kept.commit(sweep, EXPIRE_MS)
        assert len(kept.data) == left + 1


@given(st.lists(st.tuples(st.integers(0, 400), st.lists(st.integers(0, 30), max_size=4)), max_size=40))
def test_all_that_expires_is_removed_in_the_end(steps: list[tuple[int, list[int]]]) -> None:
    kept, sweep, now_ms = Kept(), Sweep(EXPIRE_MS), 0
    for passed_ms, keys in steps:
        now_ms += passed_ms
        kept.data |= {b"k%d" % key: stored(b"", now_ms) for key in keys}
        kept.commit(sweep, now_ms)
        late_ms = EXPIRE_MS + EXPIRE_MS // 8 + max((one for one, _ in steps), default=0)
        assert all(written_ms(raw) > now_ms - late_ms for key, raw in kept.data.items() if key != STREAM_TIME_KEY)
    kept.commit(sweep, now_ms + 2 * EXPIRE_MS)
    assert kept.data.keys() == {STREAM_TIME_KEY}
