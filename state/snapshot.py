"""Snapshots: the tables of all scopes as sorted files at known changelog positions, to restore from in milliseconds.

Layout: `<root>/<id>/manifest.json`, `<root>/<id>/<scope>/manifest.json`, `<root>/<id>/<scope>/<table>/00000.sst`.
One rule: the root manifest is written last. Without it there is no snapshot, whatever else lies there; with it, every
file it leads to is checked against its sum before use. Files are written by anybody (a Spark task, a live worker) and
hold the reserved keys of a store, so that a store that ingests them knows its offset and origin at once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from rocksdict import SstFileWriter

from state.changelog import usable
from state.errors import SnapshotUnusable
from state.store.layout import DATA, OFFSET_KEY, STAMP_KEY, pack_offset, pack_stamp
from state.store.rocksdb import RocksDbStore, explain, options

FORMAT = 1
MANIFEST = "manifest.json"
FILE_BYTES = 256 << 20
_ADVICE = "use another snapshot, or restore from the changelog"

M = TypeVar("M", bound=msgspec.Struct)


class Origin(NamedTuple):
    """The changelog partition's topic that a table stands for, in which log, up to where, and when."""

    log_id: str
    topic: str
    topic_id: str
    offset: int
    time_ms: int


class FileSum(msgspec.Struct, frozen=True):
    """A file of a table. `name` is relative to the folder of the scope."""

    name: str
    bytes: int
    blake2b: str


class TableManifest(msgspec.Struct, frozen=True):
    """One table of a scope: what changelog it stands for up to `offset`, and its files (none for no entries)."""

    table: str
    topic: str
    topic_id: str
    offset: int
    entries: int
    files: tuple[FileSum, ...] = ()


class ScopeManifest(msgspec.Struct, frozen=True):
    """All tables of one scope."""

    scope: str
    log_id: str
    time_ms: int
    tables: tuple[TableManifest, ...]
    format: int = FORMAT

    def table(self, name: str) -> TableManifest | None:
        return next((table for table in self.tables if table.table == name), None)


class SourcePosition(msgspec.Struct, frozen=True):
    """Where live processing goes on in a source partition, when it begins from this snapshot."""

    topic: str
    partition: int
    position: int


class SnapshotManifest(msgspec.Struct, frozen=True):
    """The commit point. `partitions` counts those of each changelog topic; `scopes` maps each to its manifest's sum.

    `base` marks a snapshot that its changelogs build upon (they are not whole without it): it is never pruned.
    """

    snapshot: str
    application: str
    log_id: str
    time_ms: int
    partitions: dict[str, int]
    scopes: dict[str, str]
    positions: tuple[SourcePosition, ...] = ()
    base: bool = False
    format: int = FORMAT


# ------------------------------------------------------------------ writing


def write_table(
    folder: Path,
    table: str,
    pairs: Iterable[tuple[bytes, bytes]],
    origin: Origin,
    *,
    file_bytes: int = FILE_BYTES,
) -> TableManifest:
    """Write `pairs` (strictly ascending keys) as files under `<folder>/<table>/`; `folder` is the scope's.

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
        self._target.mkdir(parents=True, exist_ok=True)
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


def write_scope(folder: Path, manifest: ScopeManifest) -> str:
    """Write the manifest of a scope into its folder, after its tables; returns the sum the root manifest needs."""
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.encode(manifest)
    _write_whole(folder / MANIFEST, data)
    return _digest(data)


def publish(root: Path, manifest: SnapshotManifest) -> Path:
    """The commit point: write the root manifest, after checking that each scope it names is there as summed."""
    folder = root / manifest.snapshot
    for scope, wanted in manifest.scopes.items():
        data = _read(folder / scope / MANIFEST)
        if _digest(data) != wanted:
            raise SnapshotUnusable(
                f"snapshot {folder}: the manifest of {scope} is not the one announced: write it again"
            )
    _write_whole(folder / MANIFEST, msgspec.json.encode(manifest))
    return folder


def settle(draft: Path, final: Path) -> bool:
    """Give a finished scope folder its name. False where another attempt was faster; the draft is removed then."""
    try:
        draft.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise SnapshotUnusable(f"{draft} cannot be renamed to {final}: {error.strerror}") from error
        shutil.rmtree(draft)
        return False
    return True


def _write_whole(path: Path, data: bytes) -> None:
    """All of the file or none of it, also after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


# ------------------------------------------------------------------ finding


def listing(root: Path) -> tuple[list[SnapshotManifest], dict[str, str]]:
    """The published snapshots under `root`, oldest first, and what is wrong with those that cannot be read.

    Unfinished ones and other folders do not count.
    """
    found: list[SnapshotManifest] = []
    problems: dict[str, str] = {}
    for path in sorted(root.glob(f"*/{MANIFEST}")):
        snapshot = path.parent.name
        try:
            found.append(load(root, snapshot))
        except SnapshotUnusable as error:
            problems[snapshot] = str(error)
    return sorted(found, key=lambda one: (one.time_ms, one.snapshot)), problems


def load(root: Path, snapshot: str) -> SnapshotManifest:
    path = root / snapshot / MANIFEST
    found = _parse(path, _read(path), SnapshotManifest)
    _check_format(path, found.format)
    return found


def load_scope(root: Path, manifest: SnapshotManifest, scope: str) -> ScopeManifest:
    """The manifest of one scope, checked against the root's."""
    if scope not in manifest.scopes:
        raise SnapshotUnusable(f"snapshot {root / manifest.snapshot} has no {scope}: {_ADVICE}")
    path = root / manifest.snapshot / scope / MANIFEST
    data = _read(path)
    if _digest(data) != manifest.scopes[scope]:
        raise SnapshotUnusable(f"{path} was changed since the snapshot was published: {_ADVICE}")
    found = _parse(path, data, ScopeManifest)
    _check_format(path, found.format)
    return found


def newest(root: Path, application: str, log_id: str, partitions: Mapping[str, int]) -> SnapshotManifest | None:
    """The newest snapshot of this application in this log whose changelogs have these partition counts."""
    fitting = [
        one
        for one in listing(root)[0]
        if (one.application, one.log_id) == (application, log_id)
        and all(partitions.get(topic) == count for topic, count in one.partitions.items())
    ]
    return fitting[-1] if fitting else None


def prune(root: Path, keep: int, *, protected: Iterable[str] = ()) -> list[str]:
    """Remove all but the newest `keep` snapshots; never a base, nor one of `protected`. Returns what went."""
    kept = set(protected)
    removed: list[str] = []
    for one in listing(root)[0][: -keep or None]:
        if not one.base and one.snapshot not in kept:
            (root / one.snapshot / MANIFEST).unlink()  # from here on it is no snapshot
            shutil.rmtree(root / one.snapshot)
            removed.append(one.snapshot)
    return removed


# ------------------------------------------------------------------ using


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
    for wanted in files:
        if Path(wanted.name).is_absolute() or ".." in Path(wanted.name).parts:
            raise SnapshotUnusable(f"{folder} names the file {wanted.name!r}, which lies outside of it: {_ADVICE}")
        found = _sum(folder, folder / wanted.name)
        if found != wanted:
            raise SnapshotUnusable(f"{folder / wanted.name} does not match its checksum: {_ADVICE}")


def ingest(store: RocksDbStore, folder: Path, table: TableManifest) -> None:
    """Fill an empty store from a table of the scope at `folder`; its offset is the snapshot's afterwards.

    Raises SnapshotUnusable, before the store is touched, where a file is missing or altered.
    """
    verify_files(folder, table.files)
    if table.files:
        store.ingest([folder / wanted.name for wanted in table.files])
    elif store.is_empty():
        store.write({}, table.offset)
    else:
        raise SnapshotUnusable(f"the store {store.path} is not empty: wipe it before it takes a snapshot")
    if store.offset != table.offset:
        raise SnapshotUnusable(
            f"{folder}: table {table.table} holds offset {store.offset}, not {table.offset}: {_ADVICE}"
        )


def read_table(folder: Path, table: TableManifest, scratch: Path) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a snapshot's table in key order, through a store made in `scratch` (removed at the end)."""
    store = RocksDbStore(scratch, stamp={})
    try:
        if table.files:
            verify_files(folder, table.files)
            store.ingest([folder / wanted.name for wanted in table.files])
        yield from store.range(None, None)
    finally:
        store.close()
        shutil.rmtree(scratch, ignore_errors=True)


# ------------------------------------------------------------------ small things


def _sum(folder: Path, path: Path) -> FileSum:
    digest = hashlib.blake2b(digest_size=32)
    size = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise SnapshotUnusable(f"{path} cannot be read ({error.strerror}): {_ADVICE}") from error
    return FileSum(str(path.relative_to(folder)), size, digest.hexdigest())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SnapshotUnusable(f"{path} cannot be read ({error.strerror}): {_ADVICE}") from error


def _parse(path: Path, data: bytes, kind: type[M]) -> M:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotUnusable(f"{path} is no manifest ({error}): {_ADVICE}") from error


def _check_format(path: Path, found: int) -> None:
    if found != FORMAT:
        raise SnapshotUnusable(f"{path} has format {found}, this version reads {FORMAT}: use the version that wrote it")
