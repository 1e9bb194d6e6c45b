"""The store on disk: one RocksDB per table of a task, over rocksdict.

One rule: the changelog offset lies in the same column family and is written in the same batch as the data, without a
write-ahead log. After kill -9 the store falls back to its last flush and its offset names exactly that point.
Batches are sorted by key (up to twice as fast) and should be small (up to 4,000 changes): the binding holds the GIL
while it writes, so a thread would not free the event loop. Many stores share one `Budget` of memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    WriteBufferManager,
    WriteOptions,
)

from state import private
from state.clocks import wall_ms
from state.errors import DirectoryLocked, DirectoryUnusable, StateError, StoreDamaged, StoreDeleted, TooManyFiles
from state.store.batches import changed, in_order, stamped
from state.store.full_disk import is_stall, no_space, refuse_full
from state.store.layout import (
    DATA,
    DATA_END,
    OFFSET_KEY,
    STAMP_KEY,
    unpack_offset,
    unpack_stamp,
)
from state.store.protocol import Range

WRITE_BYTES = 8 << 20  # that are not flushed yet, of one store
# What filters these keys, as a share of the bytes that they may take: 160 KiB, which is full after 130,000
# keys, and 40 KiB where so many stores are open that these would add up. A full one makes the look-up of a new key 1.5 times as dear.
FEW_STORES = 64
FILTER_OF_FEW, FILTER_OF_MANY = 0.02, 0.005
_SIZES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


class Budget:
    """Memory that all stores of a process share: a cache of blocks read and a limit for what is not flushed yet."""

    def __init__(self, cache_bytes: int = 64 << 20, write_bytes: int = 64 << 20) -> None:
        # Its parts are of 32 MiB; those of the other kind are of 1 MiB, and a file of a million small keys has a filter that is
        # larger than that: it was read again for each key.
        self.cache = Cache.new_hyper_clock_cache(cache_bytes, 0)
        self.writes = WriteBufferManager(write_bytes, False)
        # Those of buffered.py that are open: several threads open and close stores, and one that was miscounted would be missed.
        self.buffered: set[Path] = set()


class Peek(NamedTuple):
    """What a store on disk says of itself, read without opening it for writing."""

    offset: int
    stamp: Mapping[str, str]
    size_bytes: int


def options(budget: Budget | None = None) -> Options:
    """Options of every store and every snapshot file: raw keys in byte order, and small buffers for many stores."""
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_write_buffer_size(WRITE_BYTES)
    chosen.set_max_write_buffer_number(4)
    chosen.set_arena_block_size(64 << 10)
    # A key that is nowhere, as each new one, is not searched for in what is not flushed.
    chosen.set_memtable_whole_key_filtering(True)
    chosen.set_memtable_prefix_bloom_ratio(filter_share(budget))
    chosen.set_target_file_size_base(16 << 20)
    chosen.set_level_zero_slowdown_writes_trigger(40)
    chosen.set_level_zero_stop_writes_trigger(80)
    chosen.set_compression_type(DBCompressionType.lz4())
    chosen.set_max_open_files(128)
    chosen.set_keep_log_file_num(2)
    chosen.set_max_log_file_size(1 << 20)
    chosen.set_is_fd_close_on_exec(True)
    chosen.set_stats_dump_period_sec(0)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    if budget is not None:
        table.set_block_cache(budget.cache)
        table.set_cache_index_and_filter_blocks(True)
        chosen.set_write_buffer_manager(budget.writes)
    chosen.set_block_based_table_factory(table)
    return chosen


_LOOKS = 10  # at a store that its owner compacts meanwhile
UNUSABLE = ("permission denied", "read-only file system", "not a directory")


def filter_share(budget: Budget | None) -> float:
    """What a store that is opened now gets."""
    return FILTER_OF_FEW if budget is None or len(budget.buffered) < FEW_STORES else FILTER_OF_MANY


def explain(error: Exception, path: Path) -> Exception:
    """The project's error for one of RocksDB's, which come as plain exceptions with a text. Others stay as they are."""
    if not isinstance(error, DbClosedError | OSError) and type(error) is not Exception:
        return error  # a key that is not bytes, and the like
    text = str(error)
    low = text.lower()
    if isinstance(error, DbClosedError):
        return StateError(f"the store {path} was closed: open it again")
    if "no such file or directory" in low and not is_there(path):
        return deleted(path)
    if "too many open files" in low:
        return TooManyFiles(
            f"the store {path} cannot be opened: its process has too many files open; raise the limit (`ulimit -n`, "
            f"LimitNOFILE= of systemd), or give it fewer tasks ({text})"
        )
    if "lock hold by" in low or ("/lock:" in low and "temporarily unavailable" in low):
        return DirectoryLocked(f"the store {path} is open elsewhere, in this process or another: close it there first")
    if "no space left" in low:
        return no_space(path, text)
    if "/lock:" in low or any(reason in low for reason in UNUSABLE):
        return DirectoryUnusable(f"the store {path} may not be written: check its folder ({text})")
    return StoreDamaged(f"the store {path} cannot be read: wipe it and restore it from its changelog ({text})", path)


def deleted(path: Path) -> StoreDeleted:
    return StoreDeleted(f"the store {path} was deleted while it was open: restore it from its changelog")


def is_there(path: Path) -> bool:
    """Whether a store lies at the path, as far as a glance tells: one that may not be looked at is not gone."""
    try:
        return (path / "CURRENT").exists()
    except PermissionError:
        return True


class RocksDbStore:
    """See `state.store.protocol.Store`. The stamp on disk counts; the one given is for a new store."""

    def __init__(
        self,
        path: Path,
        *,
        stamp: Mapping[str, str],
        cache: Budget | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.path = path
        self._clock_ms = clock_ms
        self._is_marked = False  # the stamp changed and is to be written
        self._ranges: weakref.WeakSet[_Range] = weakref.WeakSet()
        self._without_wal = cast(Any, WriteOptions())
        self._without_wal.disable_wal = True  # a property, whatever the binding's stubs say
        self._at_once = cast(Any, WriteOptions())
        self._at_once.disable_wal = self._at_once.no_slowdown = True
        self._filter_bytes = int(filter_share(cache) * WRITE_BYTES)
        try:
            private.make_folder(path)
        except OSError as error:
            raise DirectoryUnusable(f"the store {path} cannot be made: {error.strerror}") from error
        try:
            self._db = Rdict(str(path), options(cache))
        except Exception as error:  # the binding knows no other class
            raise explain(error, path) from error
        try:
            self._load(stamp)
        except BaseException:
            self._db.close()
            raise

    def _load(self, stamp: Mapping[str, str]) -> None:
        written = self._get(STAMP_KEY)
        self._offset, self._time_ms = unpack_offset(self._get(OFFSET_KEY), self.path)
        if written is not None:
            self._stamp = unpack_stamp(written, self.path)
            return
        if self._offset:
            raise StoreDamaged(f"the store {self.path} does not say where it comes from: wipe it and restore it")
        self._stamp = {key: value for key, value in stamp.items() if key != "time_ms"}
        self._apply(partial(stamped, stamp))

    # ------------------------------------------------------------------ reading

    def get(self, key: bytes) -> bytes | None:
        """As the port says; not through `_get`, as it is called for each new key. Raises StateError."""
        try:
            found: bytes | None = self._db.get(DATA + key)
        except Exception as error:
            raise explain(error, self.path) from error
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """`get` of each key, in order; those that lie beside each other are found in half of the time. Raises StateError."""
        get = self._db.get
        try:
            return list(map(get, map(DATA.__add__, keys)))
        except Exception as error:
            raise explain(error, self.path) from error

    def _get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise explain(error, self.path) from error
        return found

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Reads the store as it was at the call, whatever is written meanwhile. Raises StateError."""
        found = _Range(self._db, start or b"", stop, self.path)
        self._ranges.add(found)
        return found

    @property
    def offset(self) -> int:
        return self._offset

    def stamp(self) -> Mapping[str, str]:
        """What was given when the store was first made; see the port."""
        return {**self._stamp, "time_ms": str(self._time_ms)}

    def mark(self, name: str, value: str) -> None:
        if self._stamp.get(name) != value:
            self._stamp = {**self._stamp, name: value}
            self._is_marked = True

    def whole_at(self, time_ms: int) -> None:
        self._time_ms = max(self._time_ms, time_ms)

    def size_bytes(self) -> int:
        """What the store holds, in memory and on disk. Raises StateError."""
        try:
            on_disk, in_memory = (self._db.property_int_value(name) or 0 for name in _SIZES)
        except Exception as error:
            raise explain(error, self.path) from error
        return on_disk + max(0, in_memory - self._filter_bytes)  # which is of one size, whatever is in it

    # ------------------------------------------------------------------ writing

    def write(
        self, changes: Mapping[bytes, bytes | None], offset: int, *, is_whole: bool = True, gone: Sequence[Range] = ()
    ) -> None:
        time_ms = self._clock_ms() if is_whole else self._time_ms or self._clock_ms()
        self._put(changes, offset, time_ms, self._stamp if self._is_marked else None, gone)
        self._offset, self._time_ms, self._is_marked = offset, time_ms, False

    def write_in_order(self, keys: Sequence[bytes], values: Sequence[bytes | None], offset: int) -> None:
        """As the port says. Raises StateError."""
        time_ms = self._time_ms or self._clock_ms()
        self._apply(partial(in_order, keys, values, offset, time_ms, self._stamp if self._is_marked else None))
        self._offset, self._time_ms, self._is_marked = offset, time_ms, False

    def _put(
        self,
        changes: Mapping[bytes, bytes | None],
        offset: int,
        time_ms: int,
        stamp: Mapping[str, str] | None,
        gone: Sequence[Range],
    ) -> None:
        self._apply(partial(changed, changes, offset, time_ms, stamp, gone))

    def _apply(self, batch: Callable[[], Any]) -> None:
        """What `batch` makes, which is taken by the call that writes it."""
        try:
            try:
                self._db.write(batch(), self._at_once)
            except Exception as error:
                if not is_stall(error):
                    raise
                refuse_full(self.path, 2 * WRITE_BYTES)
                self._db.write(batch(), self._without_wal)
        except Exception as error:
            raise explain(error, self.path) from error

    def flush(self) -> None:
        """Make everything written so far survive a crash. Releases the GIL: may run in a thread. Raises StateError."""
        try:
            self._db.flush(True)
        except Exception as error:
            raise explain(error, self.path) from error

    def is_empty(self) -> bool:
        return self._offset == 0 and next(self.range(None, None), None) is None

    def ingest(self, files: Sequence[Path]) -> None:
        """Take over sorted files that hold data, offset and stamp (`state.snapshot` writes them). The files stay.

        Only into an empty store: ingested keys would win over newer ones.
        Raises StateError, StoreDamaged.
        """
        if not self.is_empty():
            raise StateError(
                f"the store {self.path} is not empty, and a snapshot would overwrite what is newer: wipe it"
            )
        copying = IngestExternalFileOptions()
        copying.set_move_files(False)
        try:
            self._db.ingest_external_file([str(file) for file in files], copying)
        except Exception as error:
            raise explain(error, self.path) from error
        written = self._get(STAMP_KEY)
        if written is None:
            raise StoreDamaged(f"the files ingested into {self.path} do not say where they come from: wipe the store")
        self._stamp = unpack_stamp(written, self.path)
        self._offset, self._time_ms = unpack_offset(self._get(OFFSET_KEY), self.path)

    # ------------------------------------------------------------------ copies and the end

    def copy_to(self, folder: Path) -> None:
        """See `state.store.protocol.TakesCopies`. Raises StateError."""
        try:
            private.make_folder(folder.parent)
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as error:
            raise explain(error, self.path) from error

    def close(self) -> None:
        """Flushes. Ranges still open end with an error: each of them would keep the folder locked. Raises StateError."""
        for found in list(self._ranges):
            found.drop()
        was_there = is_there(self.path)  # once it is closed, another process or thread may have made a new one
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as error:
            if not was_there:
                raise deleted(self.path) from error
            raise explain(error, self.path) from error


class _Range(Iterator[tuple[bytes, bytes]]):
    """Pairs of a store without the prefix.

    By RocksDB's own iterator: that of `Rdict.items` ends at a block that cannot be read as if nothing came after it.
    """

    def __init__(self, db: Any, start: bytes, stop: bytes | None, path: Path) -> None:
        self._bounds = ReadOptions()  # the iterator points into the bytes of its bound without owning them
        self._bounds.set_iterate_upper_bound(DATA_END if stop is None else DATA + stop)
        self._path = path
        try:
            self._at: Any = db.iter(self._bounds)
            self._at.seek(DATA + start)
        except Exception as error:
            raise explain(error, path) from error

    def __next__(self) -> tuple[bytes, bytes]:
        at = self._at
        if at is None:
            raise StateError(f"the store {self._path} was closed while it was being read")
        try:
            if at.valid():
                found = at.key()[1:], at.value()
                at.next()
                return found
            at.status()  # raises where it did not come to the end
        except Exception as error:
            raise explain(error, self._path) from error
        raise StopIteration

    def drop(self) -> None:
        self._at = None


def peek(path: Path) -> Peek:
    """Offset, stamp and size of a store on disk, also while another process has it open (its last flush then).
    Raises StoreDamaged, DirectoryUnusable."""
    if not is_there(path):
        raise StoreDamaged(f"there is no store at {path}")
    for _ in range(_LOOKS - 1):
        try:
            return _peeked(path)
        except StoreDamaged as error:
            if "no such file" not in str(error).lower():
                raise
    return _peeked(path)


def _peeked(path: Path) -> Peek:
    """Raises StoreDamaged, also where whoever has the store open removed files, with what they held in others, since the list of files
    was read; DirectoryUnusable."""
    try:
        db = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only(False))
    except Exception as error:
        raise explain(error, path) from error
    try:
        offset, time_ms = unpack_offset(db.get(OFFSET_KEY), path)
        written = db.get(STAMP_KEY)
        stamp = unpack_stamp(written, path) if written is not None else {}
        return Peek(offset, {**stamp, "time_ms": str(time_ms)}, db.property_int_value(_SIZES[0]) or 0)
    except Exception as error:  # a block is read, and its checksum looked at, only now
        raise explain(error, path) from error
    finally:
        db.close()


def pairs_on_disk(path: Path, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of a store that lies on disk, opened to be read alone: nothing of it is changed. Raises StoreDamaged."""
    try:
        db = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only(False))
    except Exception as error:
        raise explain(error, path) from error
    try:
        yield from _Range(db, start, stop, path)
    finally:
        db.close()
