"""A store whose process is killed: what survives is some write, whole, with its offset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from state.store.rocksdb import RocksDbStore

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = 6
WRITER = """
import sys, threading
from pathlib import Path
from state.store.rocksdb import RocksDbStore

def write(store, number):
    changes = {b"first": b"%d" % number, b"last": b"%d" % number}
    store.write(changes, number)

def flush():
    for _ in range(FLUSHES):
        store.flush()
    print("flushed", flush=True)
    while True:
        store.flush()

FLUSHES = 5
store = RocksDbStore(Path(sys.argv[1]), stamp={})
number = store.offset + 1
write(store, number)
threading.Thread(target=flush, daemon=True).start()
while True:
    number += 1
    write(store, number)
"""


BUFFERED = WRITER.replace("rocksdb import RocksDbStore", "buffered import BufferedStore").replace(
    "RocksDbStore(", "BufferedStore("
)


def killed(path: Path, writer: str = WRITER) -> RocksDbStore:
    """The store, opened again after the process that wrote it, and flushed it beside that, was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert child.stdout is not None and child.stdout.readline()
    child.kill()
    child.wait()
    child.stdout.close()
    return RocksDbStore(path, stamp={})


def survivors(path: Path, writer: str = WRITER) -> set[int]:
    """The offset of the store, and the numbers that were written with it."""
    store = killed(path, writer)
    found = {store.offset, int(store.get(b"first") or 0), int(store.get(b"last") or 0)}
    store.close()
    return found


@pytest.mark.parametrize("writer", [WRITER, BUFFERED], ids=["rocksdb", "buffered"])
def test_what_survives_a_kill_is_a_whole_write_with_its_offset(tmp_path: Path, writer: str) -> None:
    before = 0
    for _ in range(KILLS):
        found = survivors(tmp_path / "store", writer)
        assert len(found) == 1 and min(found) > before
        before = min(found)


def test_an_offset_apart_from_its_data_is_noticed(tmp_path: Path) -> None:
    """The rule removed: two writes in place of one. Killed between both, so that no luck is needed."""
    apart = """    if number < 3:
        return store.write(changes, number)
    store.write({}, number)
    store.flush()
    print("flushed", flush=True)
    threading.Event().wait()"""
    broken = WRITER.replace("    store.write(changes, number)", apart).replace("target=flush", "target=int")
    assert survivors(tmp_path / "store", broken) == {2, 3}
