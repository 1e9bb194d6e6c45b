"""What a buffered store has in its buffer: who sees it, when RocksDB has it, and what a copy or a mark has of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from state.errors import StateError, StoreDamaged
from state.store import buffered
from state.store.buffered import BufferedStore
from state.store.rocksdb import Budget, RocksDbStore, peek

STAMP = {"log_id": "l"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BufferedStore]:
    made = BufferedStore(tmp_path / "store", stamp=STAMP, cache=Budget(8 << 20, 8 << 20), clock_ms=lambda: 7_000)
    yield made
    made.close()


def in_rocksdb(store: BufferedStore, key: bytes) -> bytes | None:
    return RocksDbStore.get(store, key)


def on_disk(path: Path) -> int:
    """The offset that a kill would leave; -1 where a file went while it was read."""
    try:
        return peek(path).offset
    except StoreDamaged:
        return -1


def test_a_key_that_is_written_often_reaches_rocksdb_once(store: BufferedStore) -> None:
    begun = store._db.latest_sequence_number()
    for number in range(1, 1_001):
        store.write({b"hot": b"%d" % number}, number)
    assert (store.get(b"hot"), in_rocksdb(store, b"hot"), store.offset) == (b"1000", None, 1_000)
    store.flush()
    assert in_rocksdb(store, b"hot") == b"1000"
    assert store._db.latest_sequence_number() - begun == 2, "the key, and the offset"


def test_who_asks_for_many_keys_sees_the_buffer_and_what_lies_under_it(store: BufferedStore) -> None:
    store.write({b"a": b"1", b"b": b"1", b"c": b"1"}, 3)
    store.flush()
    assert store.get_many([b"c", b"x", b"a"]) == [b"1", None, b"1"]
    store.write({b"b": None, b"c": b"2", b"d": b"2"}, 6)
    assert store.get_many([b"d", b"c", b"x", b"b", b"a", b"c"]) == [b"2", b"2", None, None, b"1", b"2"]
    assert (store.get(b"b"), in_rocksdb(store, b"b")) == (None, b"1")
    assert list(store.range(None, None)) == [(b"a", b"1"), (b"c", b"2"), (b"d", b"2")]


def test_what_comes_in_order_goes_to_rocksdb_behind_the_buffer_and_is_flushed_by_its_length(
    store: BufferedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write({b"a": b"1", b"b": b"1"}, 2, is_whole=False)
    store.write_in_order([b"b", b"c"], [b"2", b"2"], 2)
    assert [in_rocksdb(store, key) for key in (b"a", b"b", b"c")] == [b"1", b"2", b"2"]
    assert on_disk(store.path) == 0
    monkeypatch.setattr(buffered, "FLUSH_ENTRIES", 6)
    store.write_in_order([b"d"], [b"3"], 6)
    deadline = time.monotonic() + 20
    while on_disk(store.path) != 6:
        assert time.monotonic() < deadline


def test_it_is_written_out_by_keys_by_bytes_and_by_the_length_of_its_changelog(store: BufferedStore) -> None:
    keys = {b"%06d" % number: b"" for number in range(buffered.MOST_KEYS)}
    last = keys.popitem()
    store.write(keys, 1)
    assert in_rocksdb(store, b"000000") is None
    store.write(dict([last]), 2)
    assert in_rocksdb(store, b"000000") == b""
    store.write({b"large": b"x" * buffered.MOST_BYTES}, 3)
    assert in_rocksdb(store, b"large") is not None
    store.write({b"few": b"1"}, 3 + buffered.MOST_ENTRIES - 1)
    assert in_rocksdb(store, b"few") is None
    store.write({b"few": b"2"}, 3 + buffered.MOST_ENTRIES)
    assert in_rocksdb(store, b"few") == b"2"


def test_keys_that_are_written_again_take_no_more_room(store: BufferedStore) -> None:
    value = b"x" * (buffered.MOST_BYTES // 20)
    for number in range(100):
        store.write({b"%d" % (number % 10): value}, number + 1)
    assert in_rocksdb(store, b"1") is None


def test_stores_that_share_a_budget_share_the_room(tmp_path: Path) -> None:
    budget = Budget(8 << 20, 8 << 20)
    stores = [BufferedStore(tmp_path / str(n), stamp=STAMP, cache=budget) for n in range(64)]
    for one in stores[1:-1]:
        one.write({b"a": b"x" * (buffered.MOST_BYTES_ALL // 64)}, 1)
        assert in_rocksdb(one, b"a") is not None
    for one in stores[1:]:
        one.close()
        one.close()
    stores[0].write({b"a": b"x" * (buffered.MOST_BYTES_ALL // 64)}, 1)
    assert in_rocksdb(stores[0], b"a") is None, "the room of those that are closed is free"
    stores[0].close()


def test_a_store_that_is_written_for_long_is_on_disk_up_to_its_last_entries(store: BufferedStore) -> None:
    """A process that is killed has so much to replay."""
    last = buffered.FLUSH_ENTRIES + 10 * buffered.MOST_ENTRIES
    for offset in range(buffered.MOST_ENTRIES // 4, last, buffered.MOST_ENTRIES // 4):
        store.write({b"hot": b"%d" % offset}, offset)
    least = store.offset - buffered.FLUSH_ENTRIES - buffered.MOST_ENTRIES
    deadline = time.monotonic() + 10
    while on_disk(store.path) < least:  # RocksDB flushes beside the loop
        assert time.monotonic() < deadline, f"{on_disk(store.path)} on disk, not {least}"


def test_a_copy_has_the_buffer(store: BufferedStore, tmp_path: Path) -> None:
    store.write({b"a": b"1"}, 1)
    store.copy_to(tmp_path / "copy")
    assert peek(tmp_path / "copy").offset == 1


def test_a_mark_after_a_write_is_not_of_what_was_written_before(store: BufferedStore) -> None:
    store.mark("history", "one")
    store.write({b"a": b"1"}, 1)
    store.mark("history", "two")
    store.flush()
    assert peek(store.path).stamp["history"] == "one"
    store.write({}, 2)
    store.flush()
    assert (peek(store.path).stamp["history"], peek(store.path).offset) == ("two", 2)


def test_copies_beside_writes_lose_none_of_them(store: BufferedStore, tmp_path: Path) -> None:
    done = threading.Event()

    def copying() -> None:
        number = 0
        while not done.is_set():
            store.copy_to(tmp_path / f"copy{number}")
            number += 1

    thread = threading.Thread(target=copying)
    thread.start()
    for number in range(1, 501):
        store.write({b"%06d" % number: b"1"}, number)
        assert store.get(b"%06d" % number) == b"1"
    done.set()
    thread.join()
    assert sum(1 for _ in store.range(None, None)) == 500


def test_what_is_written_after_the_end_is_refused(store: BufferedStore) -> None:
    store.close()
    with pytest.raises(StateError, match="closed"):
        store.write({b"a": b"1"}, 1)


def test_a_look_beside_its_owner_finds_it_whole(store: BufferedStore) -> None:
    """Four flushes and RocksDB merges their files, and removes them: a look that had read their names took the store for damaged."""
    store.write({b"a": b"0"}, 1)
    store.flush()
    done = threading.Event()

    def flushing() -> None:
        for number in range(2, 300):
            store.write({b"a": b"%d" % number}, number)
            store.flush()
        done.set()

    thread = threading.Thread(target=flushing)
    thread.start()
    seen = 0
    try:
        while not done.is_set():
            seen = max(seen, (found := peek(store.path)).offset)
            assert found.offset >= 1
    finally:
        thread.join()
    assert seen > 1
