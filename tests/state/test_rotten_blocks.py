"""A block on disk that does not match its checksum: a read of it raises, and never returns a part as the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from state.errors import StoreDamaged
from state.store.rocksdb import RocksDbStore, pairs_on_disk

PAIRS = {f"k{n:05d}".encode(): bytes([n % 251]) * 60 for n in range(4_000)}


@pytest.fixture(params=[0.1, 0.4, 0.7])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of one file, in which one block is not as it was written."""
    path = tmp_path / "store"
    store = RocksDbStore(path, stamp={})
    store.write(PAIRS, 9)
    store.close()
    [file] = path.glob("*.sst")
    data = bytearray(file.read_bytes())
    at = int(len(data) * request.param) + 20
    data[at : at + 16] = bytes(byte ^ 0xFF for byte in data[at : at + 16])
    file.write_bytes(data)
    return path


def test_a_range_over_it_does_not_end_as_if_nothing_came_after(damaged: Path) -> None:
    store = RocksDbStore(damaged, stamp={})
    read: dict[bytes, bytes] = {}
    with pytest.raises(StoreDamaged, match="wipe it and restore it"):
        read.update(store.range(None, None))
    with pytest.raises(StoreDamaged, match="wipe it and restore it"):
        for key, value in store.range(None, None):
            read[key] = value
    assert len(read) < len(PAIRS) and read.items() <= PAIRS.items()
    store.close()


def test_a_store_that_is_read_where_it_lies_says_so_as_well(damaged: Path) -> None:
    with pytest.raises(StoreDamaged, match="wipe it and restore it"):
        list(pairs_on_disk(damaged, b"", None))


def test_what_lies_beside_it_is_read(damaged: Path) -> None:
    """Ranges of a few keys: each is right or refused, and only some are refused."""
    store = RocksDbStore(damaged, stamp={})
    refused = 0
    keys = sorted(PAIRS)
    for n in range(0, len(keys) - 10, 10):
        try:
            assert [key for key, _ in store.range(keys[n], keys[n + 10])] == keys[n : n + 10]
        except StoreDamaged:
            refused += 1
    assert 0 < refused < 100
    store.close()
