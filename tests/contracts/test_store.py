"""What every store does, on disk or in memory. One suite."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state.errors import StateError
from state.store.buffered import BufferedStore
from state.store.memory import MemoryStore
from state.store.rocksdb import Budget, RocksDbStore

STAMP = {"log_id": "log-1", "topic_id": "topic-1"}
BUDGET = Budget(8 << 20, 8 << 20)
Open = Callable[[Path], Any]


CLOCK = [5_000]


def open_rocksdb(path: Path) -> Any:
    return RocksDbStore(path, stamp=STAMP, cache=BUDGET, clock_ms=lambda: CLOCK[0])


def open_buffered(path: Path) -> Any:
    return BufferedStore(path, stamp=STAMP, cache=BUDGET, clock_ms=lambda: CLOCK[0])


def open_memory(path: Path) -> Any:
    return MemoryStore(stamp=STAMP, clock_ms=lambda: CLOCK[0])


@pytest.fixture
def clock() -> Iterator[list[int]]:
    """The wall clock of stores, in ms."""
    yield CLOCK
    CLOCK[0] = 5_000


@pytest.fixture(params=[open_rocksdb, open_buffered, open_memory], ids=["rocksdb", "buffered", "memory"])
def opener(request: pytest.FixtureRequest) -> Open:
    found: Open = request.param
    return found


@pytest.fixture
def store(opener: Open, tmp_path: Path) -> Iterator[Any]:
    made = opener(tmp_path / "store")
    yield made
    made.close()


def everything(store: Any) -> dict[bytes, bytes]:
    return dict(store.range(None, None))


def test_a_new_store_is_empty_and_says_where_it_comes_from(store: Any) -> None:
    assert store.offset == 0
    assert everything(store) == {}
    assert store.get(b"a") is None
    assert dict(store.stamp()) == {**STAMP, "time_ms": "0"}


def test_writes_and_deletes_come_with_their_offset(store: Any) -> None:
    store.write({b"b": b"2", b"a": b"1", b"": b"empty key", b"c": b""}, 7)
    assert store.offset == 7
    assert [store.get(key) for key in (b"a", b"b", b"c", b"", b"d")] == [b"1", b"2", b"", b"empty key", None]
    store.write({b"a": None, b"b": b"new", b"never": None}, 9)
    assert store.offset == 9
    assert everything(store) == {b"": b"empty key", b"b": b"new", b"c": b""}
    store.write({}, 12)
    assert store.offset == 12
    assert store.stamp()["time_ms"] == "5000"


def test_the_time_of_a_replay_is_when_the_store_last_held_all(tmp_path: Path, opener: Open, clock: list[int]) -> None:
    store = opener(tmp_path / "replayed")
    store.write({b"a": b"1"}, 1, is_whole=False)
    clock[0] += 10
    store.write({b"b": b"1"}, 2, is_whole=False)
    assert store.stamp()["time_ms"] == "5000"  # deletions of before then may be forgotten by now
    store.whole_at(5_007)
    store.write({b"c": b"1"}, 3, is_whole=False)
    assert store.stamp()["time_ms"] == "5007"
    store.whole_at(5_001)
    assert store.stamp()["time_ms"] == "5007"
    store.write({b"d": b"1"}, 4)
    assert store.stamp()["time_ms"] == "5010"
    store.close()


def test_what_a_replay_writes_in_order_lies_over_what_was_written_before(
    tmp_path: Path, opener: Open, clock: list[int]
) -> None:
    store = opener(tmp_path / "replayed")
    store.write({b"a": b"1", b"b": b"1", b"c": b"1"}, 3, is_whole=False)
    store.mark("leader_epoch", "5")
    clock[0] += 10
    store.write_in_order([b"", b"a", b"b"], [b"0", b"2", None], 3)
    store.write_in_order([b"d", b"e"], [None, b"2"], 8)
    assert (store.offset, everything(store)) == (8, {b"": b"0", b"a": b"2", b"c": b"1", b"e": b"2"})
    assert dict(store.stamp()) == {**STAMP, "leader_epoch": "5", "time_ms": "5000"}
    store.write({b"e": b"3"}, 9, is_whole=False)
    assert everything(store) == {b"": b"0", b"a": b"2", b"c": b"1", b"e": b"3"}
    store.close()


def test_no_key_meets_what_the_store_keeps_for_itself(store: Any) -> None:
    odd = [b"\x00offset", b"\x00stamp", b"offset", b"\x00", b"\x01", b"\x02", b"\xff" * 9]
    store.write({key: b"v" + key for key in odd}, 3)
    assert store.offset == 3
    assert everything(store) == {key: b"v" + key for key in odd}
    store.write(dict.fromkeys(odd), 4)
    assert everything(store) == {}
    assert store.offset == 4


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_goes_by_ranges_is_what_is_deleted_key_by_key(opener: Open, data: st.DataObject) -> None:
    """Also what was set there since, before the store had the rest, and what lies at the ends."""
    folder = Path(tempfile.mkdtemp())
    store, model = opener(folder / "store"), dict[bytes, bytes]()
    for number in range(1, data.draw(st.integers(2, 6)) + 1):
        first = data.draw(st.integers(0, 300))
        last = first + data.draw(st.integers(0, 200))
        start, stop = b"%03d" % first, b"%03d" % last
        changes: dict[bytes, bytes | None] = {}
        if data.draw(st.booleans()):
            changes.update((b"%03d" % key, b"%d" % number) for key in range(first, last, data.draw(st.integers(1, 3))))
            gone = []
        else:
            changes.update(dict.fromkeys(key for key in model if start <= key < stop))
            changes[b"%03d" % last] = b"kept"
            gone = [(start, stop)]
        store.write(changes, number, gone=gone)
        model = {key: value for key, value in {**model, **changes}.items() if value is not None}
        if data.draw(st.booleans()):
            store.flush()
        key = b"%03d" % data.draw(st.integers(0, 500))
        assert store.get(key) == model.get(key)
    assert everything(store) == dict(sorted(model.items()))
    store.close()
    shutil.rmtree(folder)


def test_ranges_are_in_byte_order_and_half_open(store: Any) -> None:
    store.write({bytes([number]): b"%d" % number for number in (200, 3, 100, 0, 255, 1)}, 1)
    assert [key[0] for key, _ in store.range(None, None)] == [0, 1, 3, 100, 200, 255]
    assert [key[0] for key, _ in store.range(b"\x01", b"\xc8")] == [1, 3, 100]
    assert [key[0] for key, _ in store.range(b"\x02", None)] == [3, 100, 200, 255]
    assert [key[0] for key, _ in store.range(None, b"\x03")] == [0, 1]
    assert list(store.range(b"\x05", b"\x05")) == []
    assert list(store.range(b"\x09", b"\x05")) == []


def test_a_range_shows_the_store_as_it_was(store: Any) -> None:
    store.write({b"a": b"1", b"c": b"3"}, 1)
    found = store.range(None, None)
    store.write({b"a": b"changed", b"b": b"2", b"c": None}, 2)
    assert list(found) == [(b"a", b"1"), (b"c", b"3")]


def test_a_closed_store_says_so(store: Any) -> None:
    store.write({b"a": b"1", b"b": b"2"}, 1)
    found = store.range(None, None)
    assert next(found) == (b"a", b"1")
    store.close()
    store.close()
    with pytest.raises(StateError, match="closed"):
        next(found)
    with pytest.raises(StateError, match="closed"):
        store.get(b"a")
    with pytest.raises(StateError, match="closed"):
        store.write({b"a": b"2"}, 2)


def test_size_grows_with_the_data(store: Any) -> None:
    before = store.size_bytes()
    store.write({b"%06d" % number: b"v" * 200 for number in range(4_000)}, 1)
    assert store.size_bytes() - before > 300_000
    store.flush()
    assert store.size_bytes() > before


KEYS = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=4), max_size=8)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(CHANGES | st.lists(KEYS, min_size=100, max_size=120).map(lambda keys: dict.fromkeys(keys, b"x"))),
    bounds=st.tuples(st.none() | KEYS, st.none() | KEYS),
)
def test_a_store_is_a_sorted_dict(
    opener: Open, steps: list[dict[bytes, bytes | None]], bounds: tuple[bytes | None, bytes | None]
) -> None:
    folder = Path(tempfile.mkdtemp())
    store = opener(folder / "store")
    try:
        model: dict[bytes, bytes] = {}
        for offset, changes in enumerate(steps, 1):
            store.write(changes, offset)
            for key, value in changes.items():
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            assert store.offset == offset
        start, stop = bounds
        wanted = [
            (key, model[key])
            for key in sorted(model)
            if (start is None or key >= start) and (stop is None or key < stop)
        ]
        asked = [*sorted(model), b"nowhere"]
        assert [store.get(key) for key in asked] == [model.get(key) for key in asked]
        assert list(store.range(start, stop)) == wanted
        assert everything(store) == model
    finally:
        store.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("opener", [open_rocksdb, open_buffered])
def test_a_mark_is_of_the_stamp_from_the_next_write_on(tmp_path: Path, opener: Open) -> None:
    store = opener(tmp_path / "store")
    store.write({b"a": b"1"}, 1)
    store.mark("history", "one")
    assert store.stamp()["history"] == "one"
    store.close()
    store = opener(tmp_path / "store")
    assert "history" not in store.stamp(), "nothing was written under it"
    store.mark("history", "two")
    store.write({}, 2)
    store.close()
    store = opener(tmp_path / "store")
    assert (store.stamp()["history"], store.offset, everything(store)) == ("two", 2, {b"a": b"1"})
    store.close()


def test_a_marked_store_says_so(store: Any) -> None:
    store.mark("history", "one")
    store.write({b"a": b"1"}, 1)
    assert dict(store.stamp()) == {**STAMP, "history": "one", "time_ms": "5000"}
