"""The tables inside a snapshot: written as sorted files, checked, and ingested into an empty store in milliseconds.

One rule: a file is compared with its sum before it is used. Files are written by other processes (a Spark task,
a live worker) and begin with the reserved keys of a store, so that the store that ingests them knows its offset and
origin at once. What makes a snapshot of them is `state.manifest`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rocksdict import SstFileWriter

from state import private
from state.changelog import usable
from state.errors import SnapshotUnusable, StateError
from state.manifest import ADVICE, FileSum, ScopeManifest, SnapshotManifest, TableManifest, load, load_scope
from state.store.layout import DATA, OFFSET_KEY, STAMP_KEY, pack_offset, pack_stamp
from state.store.protocol import TakesFiles
from state.store.rocksdb import RocksDbStore, explain, options

FILE_BYTES = 256 << 20
PIECE_BYTES = 1 << 20
# Files with their sums, and records of a changelog, in a second: a third of what one machine did from its page cache (535 MiB,
# 1.0 million records of 112 bytes for each second of CPU), since disks and networks are slower. Their ratio is what decides.
READ_BYTES_S, REPLAYED_S = 200 << 20, 300_000
WORTH_S = 0.1


class Origin(NamedTuple):
    """The changelog partition's topic that a table stands for, in which log, up to where, and when."""

    log_id: str
    topic: str
    topic_id: str
    offset: int
    time_ms: int


class Read(NamedTuple):
    """A piece of a table's files: its bytes, and which share of the table is read now."""

    bytes: int
    share: float


# ------------------------------------------------------------------ writing


def write_table(
    folder: Path,
    table: str,
    pairs: Iterable[tuple[bytes, bytes]],
    origin: Origin,
    *,
    file_bytes: int = FILE_BYTES,
) -> TableManifest:
    """Write `pairs` (strictly ascending keys) as files under `<folder>/<table>/`; `folder` is the scope's, and is there.

    Raises SnapshotUnusable for keys out of order. Leaves no half-written file behind.
    """
    target = folder / table
    writer = _FileWriter(target, origin, file_bytes)
    entries = 0
    last: bytes | None = None
    try:
        for key, value in pairs:
            if last is not None and key <= last:
                raise SnapshotUnusable(
                    f"table {table} in {folder}: key {key!r} came after {last!r}; sort the entries and keep one per key"
                )
            writer.put(DATA + key, value)
            last = key
            entries += 1
        files = writer.finish()
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    sums = tuple(_sum(folder, file) for file in files)
    return TableManifest(table, origin.topic, origin.topic_id, origin.offset, entries, sums)


class _FileWriter:
    """Rolls from file to file by size. The reserved keys sort first, so they lead the first file."""

    def __init__(self, target: Path, origin: Origin, file_bytes: int) -> None:
        self._target = target
        self._origin = origin
        self._file_bytes = file_bytes
        self._files: list[Path] = []
        self._writer: SstFileWriter | None = None
        self._since_check = 0

    def put(self, key: bytes, value: bytes) -> None:
        writer = self._writer if self._writer is not None else self._next()
        writer[key] = value
        self._since_check += len(key) + len(value)
        if self._since_check >= self._file_bytes >> 4:  # asking for the size is a call for each record otherwise
            self._since_check = 0
            if writer.file_size() >= self._file_bytes:
                writer.finish()
                self._writer = None

    def _next(self) -> SstFileWriter:
        self._target.mkdir(mode=private.FOLDER, exist_ok=True)
        path = self._target / f"{len(self._files):05d}.sst"
        try:
            writer = SstFileWriter(options())
            writer.open(str(path))
        except Exception as error:
            raise explain(error, path) from error
        if not self._files:
            stamp = {"log_id": self._origin.log_id, "topic_id": self._origin.topic_id}
            writer[OFFSET_KEY] = pack_offset(self._origin.offset, self._origin.time_ms)
            writer[STAMP_KEY] = pack_stamp(stamp)
        self._files.append(path)
        self._writer = writer
        return writer

    def finish(self) -> list[Path]:
        if self._writer is not None:
            self._writer.finish()
            self._writer = None
        return self._files


# ------------------------------------------------------------------ using


class Estimate(NamedTuple):
    """About how many seconds a restore takes from a snapshot and what follows it, and from the changelog alone. Positions are
    taken for records, so a changelog that was compacted much is cheaper than this says."""

    snapshot_s: float
    replay_s: float

    @property
    def replay_is_cheaper(self) -> bool:
        """By so much that it is worth it: what a snapshot has is checked, a long replay may meet a compaction."""
        return self.snapshot_s > self.replay_s + WORTH_S

    def __str__(self) -> str:
        return f"about {self.snapshot_s:.1f} s, and {self.replay_s:.1f} s from the changelog alone"


def estimate(table: TableManifest, start: int, end: int) -> Estimate:
    """Of a table whose changelog lies from `start` to `end`."""
    size = sum(file.bytes for file in table.files)
    tail = max(0, end - max(table.offset, start))
    return Estimate(size / READ_BYTES_S + tail / REPLAYED_S, max(0, end - start) / REPLAYED_S)


def problem(
    manifest: ScopeManifest,
    table: str,
    *,
    log_id: str,
    topic_id: str,
    start: int,
    end: int,
    delete_retention_ms: int,
    now_ms: int,
    forgotten: int = 0,
) -> str | None:
    """Why a table of the snapshot may not be restored from for this changelog, or None where it may."""
    found = manifest.table(table)
    if found is None:
        return f"it has no table {table}"
    stamp = {"log_id": manifest.log_id, "topic_id": found.topic_id, "time_ms": str(manifest.time_ms)}
    return usable(
        found.offset,
        stamp,
        log_id=log_id,
        topic_id=topic_id,
        start=start,
        end=end,
        delete_retention_ms=delete_retention_ms,
        now_ms=now_ms,
        forgotten=forgotten,
    )


def verify(root: Path, snapshot: str) -> SnapshotManifest:
    """Read everything and compare all sums. Raises SnapshotUnusable."""
    manifest = load(root, snapshot)
    for scope in manifest.scopes:
        folder = root / snapshot / scope
        for table in load_scope(root, manifest, scope).tables:
            verify_files(folder, table.files)
    return manifest


def verify_files(folder: Path, files: Sequence[FileSum]) -> None:
    """Compares the files of a snapshot with their sums. Raises SnapshotUnusable."""
    for _ in verified(folder, files):
        continue


def verified(folder: Path, files: Sequence[FileSum]) -> Iterator[Read]:
    """`verify_files` piece by piece: the caller may wait between two, or stop. Raises SnapshotUnusable."""
    total, done = max(1, sum(wanted.bytes for wanted in files)), 0
    for wanted in files:
        if Path(wanted.name).is_absolute() or ".." in Path(wanted.name).parts:
            raise SnapshotUnusable(f"{folder} names the file {wanted.name!r}, which lies outside of it: {ADVICE}")
        digest, size = hashlib.blake2b(digest_size=32), 0
        for piece in _pieces(folder / wanted.name):
            digest.update(piece)
            size += len(piece)
            done += len(piece)
            yield Read(len(piece), min(1.0, done / total))
        if (size, digest.hexdigest()) != (wanted.bytes, wanted.blake2b):
            raise SnapshotUnusable(f"{folder / wanted.name} does not match its checksum: {ADVICE}")


def ingest(store: TakesFiles, folder: Path, table: TableManifest) -> None:
    """Fill an empty store from a table of the scope at `folder`; its offset is the snapshot's afterwards.

    Raises SnapshotUnusable, before the store is touched, where a file is missing or altered.
    """
    verify_files(folder, table.files)
    take(store, folder, table)


def take(store: TakesFiles, folder: Path, table: TableManifest) -> None:
    """`ingest` for files that were `verified` just now. Raises SnapshotUnusable."""
    if table.files:
        files = [folder / wanted.name for wanted in table.files]
        try:
            store.ingest(files)
        except StateError as error:
            gone = next((file for file in files if not file.exists()), None)
            if gone is None:
                raise
            raise SnapshotUnusable(f"{gone} was removed while the snapshot was read: {ADVICE}") from error
    elif store.is_empty():
        store.write({}, table.offset, is_whole=False)
    else:
        raise SnapshotUnusable(f"the store {store.path} is not empty: wipe it before it takes a snapshot")
    if store.offset != table.offset:
        raise SnapshotUnusable(
            f"{folder}: table {table.table} holds offset {store.offset}, not {table.offset}: {ADVICE}"
        )


def read_table(
    folder: Path, table: TableManifest, scratch: Path, first: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a snapshot's table in key order, through a store made in `scratch` (removed at the end). `first`: a key whose
    entry, where there is one, comes before the others, too."""
    store = RocksDbStore(scratch, stamp={})
    try:
        if table.files:
            verify_files(folder, table.files)
            store.ingest([folder / wanted.name for wanted in table.files])
        if first is not None:
            yield from store.range(first, first + b"\x00")
        yield from store.range(None, None)
    finally:
        store.close()
        shutil.rmtree(scratch, ignore_errors=True)


# ------------------------------------------------------------------ small things


def _sum(folder: Path, path: Path) -> FileSum:
    digest, size = hashlib.blake2b(digest_size=32), 0
    for piece in _pieces(path):
        digest.update(piece)
        size += len(piece)
    return FileSum(str(path.relative_to(folder)), size, digest.hexdigest())


def _pieces(path: Path) -> Iterator[bytes]:
    """Raises SnapshotUnusable."""
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except OSError as error:
        raise SnapshotUnusable(f"{path} cannot be read ({error.strerror}): {ADVICE}") from error
