"""Stores whose disk is full: RocksDB would wait for space as long as there is none, and hold the interpreter meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from state.directory import LOCK_FILE, StateDirectory
from state.errors import DirectoryFull, DirectoryUnusable
from state.store.full_disk import refuse_full
from state.store.rocksdb import WRITE_BYTES, RocksDbStore
from tests.small_disk import small
from tests.units import ROOT

# Four threads write to stores of their own until each was refused twice. A timer of C ends what no thread of Python leaves.
WRITING = """
import faulthandler, os, sys, threading, time
from pathlib import Path
from state.errors import StateError
from state.store.rocksdb import Budget, RocksDbStore

faulthandler.dump_traceback_later(60, exit=True)
budget = Budget()

def write(path):
    refused, number, store = 0, 0, None
    while refused < 2:
        try:
            store = store or RocksDbStore(path, stamp={}, cache=budget)
            store.write({b"%d" % (number + n): os.urandom(4096) for n in range(50)}, number)
            number += 50
        except StateError as error:
            assert "has no space left" in str(error), error
            refused += 1
            try:
                if store is not None:
                    store.close()
            except StateError:
                pass
            store = None

threads = [threading.Thread(target=write, args=(Path(sys.argv[1]) / str(n),)) for n in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
os._exit(0)
"""


__all__ = ["small"]


def test_a_lock_that_could_not_be_written_is_not_kept(small: Path) -> None:
    """The process had it for as long as it ran: its task was held by nobody else, and opened by none, without a word."""
    directory, filler = StateDirectory(small, "app", "i-1"), small / "filler"
    directory.lock("0_0").release()
    (directory.task("0_0") / LOCK_FILE).write_bytes(b"")  # as one that another process has just made
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    with pytest.raises(DirectoryFull, match="has no space left"):
        directory.lock("0_0")
    filler.unlink()
    with directory.lock("0_0"):
        pass


@pytest.mark.processes
def test_writers_are_refused_and_do_not_wait(small: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITING, str(small)], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_that_is_slow_to_flush_takes_all(tmp_path: Path) -> None:
    """What has to wait for a moment is written, by another batch than the one that was tried."""
    store = RocksDbStore(tmp_path / "store", stamp={})
    value = bytes(4 * WRITE_BYTES)
    with pytest.raises(Exception, match="Write stall"):
        for number in range(100):
            batch = WriteBatch(raw_mode=True)
            batch.put(b"%d" % number, value)
            store._db.write(batch, store._at_once)
    store.write({b"a": b"1", b"b": None}, 9)
    assert (store.get(b"a"), store.get(b"b"), store.offset) == (b"1", None, 9)
    store.close()


def test_a_disk_with_less_than_a_flush_is_full(tmp_path: Path) -> None:
    refuse_full(tmp_path, WRITE_BYTES)
    with pytest.raises(DirectoryUnusable, match=r"store .* has no space left: free some space on its disk \(less than"):
        refuse_full(tmp_path, 1 << 60)
