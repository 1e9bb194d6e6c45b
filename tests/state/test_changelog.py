"""Replay moves a store by position; what is on a disk is trusted only under the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.changelog import apply, chunks, replay, usable
from state.errors import StateError
from state.log.batches import build_control, encode
from state.log.memory import MemoryLog
from state.log.protocol import Fetched, NewRecord, Partition, TopicSpec
from state.store.memory import MemoryStore

CHANGELOG = Partition("counts-changelog", 0)
WRITES = st.lists(st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=3)), max_size=12)


def empty() -> MemoryStore:
    return MemoryStore(stamp={"log_id": "l", "topic_id": "t"})


def fetched(records: list[NewRecord], position: int, next_position: int) -> Fetched:
    return Fetched(CHANGELOG, position, encode(records, position), next_position)


@given(commits=st.lists(WRITES, max_size=8), markers=st.booleans(), max_bytes=st.sampled_from([1, 200, 1 << 20]))
async def test_a_replayed_store_is_what_was_written(
    commits: list[list[tuple[bytes, bytes | None]]], markers: bool, max_bytes: int
) -> None:
    log = MemoryLog(markers=markers)
    await log.create_topic(TopicSpec("counts-changelog", 1, "changelog"))
    model: dict[bytes, bytes] = {}
    for commit in commits:
        await log.append({CHANGELOG: [NewRecord(key, value, 0) for key, value in commit]})
        for key, value in commit:
            model.pop(key, None)
            if value is not None:
                model[key] = value
    store = empty()
    reader = log.reader()
    reader.add(CHANGELOG, 0)
    while got := await reader.poll(max_bytes_per_partition=max_bytes):
        for one in got:
            await replay(store, one)
    assert dict(store.range(None, None)) == model
    assert store.offset == (await log.ends([CHANGELOG]))[CHANGELOG]


def test_the_offset_moves_over_what_holds_no_record() -> None:
    store = empty()
    assert apply(store, Fetched(CHANGELOG, 0, b"", 5)) == 0
    assert store.offset == 5
    assert apply(store, Fetched(CHANGELOG, 5, build_control(5, True, 0), 6)) == 0
    assert store.offset == 6


def test_only_what_follows_the_store_is_applied() -> None:
    store = empty()
    with pytest.raises(StateError, match="stands at 0"):
        apply(store, fetched([NewRecord(b"a", b"1", 0)], 3, 4))
    assert store.offset == 0


def test_long_fetches_are_written_in_sorted_chunks_and_the_offset_moves_last() -> None:
    written: list[tuple[list[bytes], int]] = []

    class Watched(MemoryStore):
        def write(self, changes, offset, *, is_whole=True, gone=()):  # type: ignore[no-untyped-def]
            written.append((list(changes), offset))
            super().write(changes, offset, is_whole=is_whole, gone=gone)

    store = Watched(stamp={})
    records = [NewRecord(b"%03d" % (number * 7 % 100), b"%d" % number, 0) for number in range(250)]
    counts = list(chunks(store, fetched(records, 0, 260), chunk=30))
    assert counts == [0, 30, 30, 30, 10]
    assert [offset for _, offset in written] == [0, 0, 0, 260]
    keys = [key for part, _ in written for key in part]
    assert keys == sorted(keys)
    assert len(keys) == 100
    assert store.get(b"%03d" % (249 * 7 % 100)) == b"249"


def test_a_replay_that_broke_off_in_the_middle_is_done_again() -> None:
    records = [NewRecord(b"%03d" % number, b"%d" % number, 0) for number in range(100)]
    fetch = fetched(records, 0, 100)
    store = empty()
    broken_off = chunks(store, fetch, chunk=30)
    assert [next(broken_off), next(broken_off)] == [0, 30]
    assert store.offset == 0
    assert apply(store, fetch) == 100
    assert (store.offset, len(dict(store.range(None, None)))) == (100, 100)


def judge(offset: int, **changed: object) -> str | None:
    stamp = {"log_id": "l", "topic_id": "t", "time_ms": "1000"}
    stamp.update({key: str(value) for key, value in changed.items() if key in stamp})
    rules: dict[str, int] = {"start": 0, "end": 100, "forgotten": 0, "delete_retention_ms": 7_200_000, "now_ms": 2_000}
    rules.update({key: int(str(value)) for key, value in changed.items() if key in rules})
    return usable(offset, stamp, log_id="l", topic_id="t", **rules)


def test_state_is_trusted_under_the_rules() -> None:
    assert judge(50) is None
    assert judge(100) is None
    assert judge(0, time_ms=0, now_ms=10**12) is None  # empty: nothing to distrust
    assert judge(100, now_ms=10**12) is None  # it holds all, whenever that was
    assert "deletions are remembered for 2 hours" in (judge(99, now_ms=10**12) or "")
    assert "deletions are remembered" in (judge(0, now_ms=10**12) or "")  # a part of the first fetch
    assert "another log" in (judge(50, log_id="other") or "")
    assert "another log" in (judge(0, log_id="other") or "")
    assert "made again" in (judge(50, topic_id="other") or "")
    assert "past the end 100" in (judge(101) or "")
    assert "begins at 60" in (judge(50, start=60) or "")
    assert "deletions before 60 are in its changelog no more" in (judge(50, forgotten=60) or "")
    assert judge(60, forgotten=60) is judge(100, forgotten=101) is None
    assert judge(50, time_ms=901_000) is None  # clocks differ
    assert "hours from now: how old it is is not known" in (judge(50, time_ms=10**12) or "")
    assert judge(100, time_ms=10**12) is None
    assert judge(50, now_ms=7_201_000) is None
    assert "last held all of its changelog 2 hours ago" in (judge(50, now_ms=7_201_001) or "")
