"""A file of very many small keys has a large filter, which is read once, and not for each key that is looked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from state.store import rocksdb

KEYS, BATCH = 450_000, 15_000


def test_a_large_filter_stays_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    plain = rocksdb.options

    def counted(budget: rocksdb.Budget | None = None) -> Any:
        chosen = plain(budget)
        chosen.enable_statistics()
        made.append(chosen)
        return chosen

    def misses() -> int:
        found = re.search(r"block\.cache\.filter\.miss COUNT : (\d+)", made[0].get_statistics())
        assert found is not None
        return int(found[1])

    monkeypatch.setattr(rocksdb, "options", counted)
    store = rocksdb.RocksDbStore(tmp_path / "t", stamp={}, cache=rocksdb.Budget(cache_bytes=8 << 20))
    for first in range(0, KEYS, BATCH):
        store.write({n.to_bytes(8, "big"): b"" for n in range(first, first + BATCH)}, first)
    store._db.compact_range(None, None)  # one file, as its filter is one, too
    looked_for = [n.to_bytes(8, "big") + b"x" for n in range(0, KEYS, KEYS // 50)]
    for key in looked_for:
        assert store.get(key) is None
    before = misses()
    assert before > 0, "the filters were not asked"
    for key in looked_for * 4:
        assert store.get(key) is None
    assert misses() == before
    store.close()
