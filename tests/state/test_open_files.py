"""A store for which the process has no file left is whole: it is refused, and not wiped as a damaged one."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state.errors import DirectoryUnusable
from state.open_files import raise_limit
from state.store.rocksdb import RocksDbStore


@contextmanager
def soft_limit(files: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("spare", [1, 2, 3, 4])  # the store needs more, and each is met at another file
def test_a_store_beyond_the_limit_is_not_damaged(tmp_path: Path, spare: int) -> None:
    store = RocksDbStore(tmp_path / "t", stamp={})
    store.write({b"key": b"value"}, 1)
    store.close()
    free = os.dup(0)
    os.close(free)
    with soft_limit(free + spare), pytest.raises(DirectoryUnusable, match=r"too many files open.*ulimit -n"):
        RocksDbStore(tmp_path / "t", stamp={})
    store = RocksDbStore(tmp_path / "t", stamp={})
    assert store.get(b"key") == b"value"
    store.close()


def test_a_process_takes_the_limit_that_it_may() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with soft_limit(512):
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
