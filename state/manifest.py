"""The manifests of snapshots: what lies where, with the sums that make it trustworthy.

Layout: `<root>/<id>/manifest.json`, `<root>/<id>/<scope>/manifest.json`, `<root>/<id>/<scope>/<table>/00000.sst`.
One rule: the root manifest is written last. Without it there is no snapshot, whatever else lies there. It holds the sum
of each scope's manifest, and that the sums of its files. The files themselves are the business of `state.snapshot`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from state.errors import SnapshotUnusable

FORMAT = 1
MANIFEST = "manifest.json"
REMOVED = ".removed"
SUM = b',"sum":"'
ADVICE = "use another snapshot, or restore from the changelog"

M = TypeVar("M", bound=msgspec.Struct)


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

    `history` is the entry of the log's history that it was written under ("": by a version that knew of none). `base` marks a
    snapshot that changelogs go on from (`state.log.base`): it is never pruned, and used only where the log
    says so, for a backfill that did not reach the log leaves one that belongs to nothing.
    """

    snapshot: str
    application: str
    log_id: str
    time_ms: int
    partitions: dict[str, int]
    scopes: dict[str, str]
    positions: tuple[SourcePosition, ...] = ()
    base: bool = False
    history: str = ""
    format: int = FORMAT
    number: int = (
        0  # among those of its folder, in the order in which they were published; 0: by a version that gave none
    )


# ------------------------------------------------------------------ writing


def write_scope(folder: Path, manifest: ScopeManifest) -> str:
    """Write the manifest of a scope into its folder, after its tables; returns the sum the root manifest needs. No folder is
    made: that of an attempt which came too late is gone, and is not to come back."""
    data = msgspec.json.encode(manifest)
    _write_whole(folder / MANIFEST, data)
    return _digest(data)


def sum_of_scope(folder: Path) -> str:
    """What `write_scope` has returned for the manifest that is there. Raises SnapshotUnusable."""
    return _digest(_read(folder / MANIFEST))


def publish(root: Path, manifest: SnapshotManifest) -> Path:
    """The commit point: write the root manifest, after checking that each scope it names is there as summed.
    Raises SnapshotUnusable."""
    folder = root / manifest.snapshot
    for scope, wanted in manifest.scopes.items():
        data = _read(folder / scope / MANIFEST)
        if _digest(data) != wanted:
            raise SnapshotUnusable(
                f"snapshot {folder}: the manifest of {scope} is not the one announced: write it again"
            )
    for written in (root, folder, *(path for path in folder.rglob("*") if path.is_dir())):
        _sync(written)  # names of files: a log may need this snapshot from now on
    number = 1 + max((one.number for one in listing(root)[0]), default=0)  # clocks may be wrong
    _write_whole(folder / MANIFEST, _summed(msgspec.json.encode(msgspec.structs.replace(manifest, number=number))))
    return folder


def settle(draft: Path, final: Path) -> bool:
    """Give a finished scope folder its name. False where another attempt was faster; the draft is removed then.
    Raises SnapshotUnusable."""
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
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------ finding


def listing(root: Path) -> tuple[list[SnapshotManifest], dict[str, str]]:
    """The published snapshots under `root`, oldest first, and what is wrong with those that cannot be read.

    Unfinished ones and other folders do not count.
    """
    found: list[SnapshotManifest] = []
    problems: dict[str, str] = {}
    for path in sorted(root.glob(f"*/{MANIFEST}")):
        snapshot = path.parent.name
        if snapshot.startswith("."):
            continue
        try:
            found.append(load(root, snapshot))
        except SnapshotUnusable as error:
            problems[snapshot] = str(error)
    numbered = [one for one in found if one.number]

    def place(one: SnapshotManifest) -> tuple[int, bool, int, str]:
        """One without a number, of an older version, stands by its time."""
        before = (other.number for other in numbered if other.time_ms <= one.time_ms)
        return one.number or max(before, default=0), not one.number, one.time_ms, one.snapshot

    return sorted(found, key=place), problems


def load(root: Path, snapshot: str) -> SnapshotManifest:
    """Raises SnapshotUnusable."""
    path = root / snapshot / MANIFEST
    data = _read(path)
    found = _parse(path, data, SnapshotManifest)
    _check_format(path, found.format)
    if not _is_as_summed(data):
        raise SnapshotUnusable(f"{path} was changed since the snapshot was published: {ADVICE}")
    return msgspec.structs.replace(found, snapshot=snapshot)  # one that was renamed or copied is what it is called now


def load_scope(root: Path, manifest: SnapshotManifest, scope: str) -> ScopeManifest:
    """The manifest of one scope, checked against the root's. Raises SnapshotUnusable."""
    if scope not in manifest.scopes:
        raise SnapshotUnusable(f"snapshot {root / manifest.snapshot} has no {scope}: {ADVICE}")
    path = root / manifest.snapshot / scope / MANIFEST
    data = _read(path)
    if _digest(data) != manifest.scopes[scope]:
        raise SnapshotUnusable(f"{path} was changed since the snapshot was published: {ADVICE}")
    found = _parse(path, data, ScopeManifest)
    _check_format(path, found.format)
    return found


def fitting(
    root: Path, application: str, log_id: str, partitions: Mapping[str, int], *, base: str = ""
) -> list[SnapshotManifest]:
    """The snapshots of this application in this log whose changelogs have these partition counts, the newest first.

    Of those that are bases only the one called `base` counts.
    """
    found = [
        one
        for one in listing(root)[0]
        if (one.application, one.log_id) == (application, log_id)
        and (not one.base or one.snapshot == base)
        and all(partitions.get(topic) == count for topic, count in one.partitions.items())
    ]
    return found[::-1]


def newest(
    root: Path, application: str, log_id: str, partitions: Mapping[str, int], *, base: str = ""
) -> SnapshotManifest | None:
    """The first of those that are `fitting`."""
    return next(iter(fitting(root, application, log_id, partitions, base=base)), None)


def prune(root: Path, keep: int, *, protected: Iterable[str] = ()) -> list[str]:
    """Remove all but the newest `keep` snapshots of each application and log; never a base, nor one of `protected`. Returns what went.
    Another one may be at work, and what one that was killed has left goes, too."""
    kept, found = set(protected), listing(root)[0]
    left = Counter((one.application, one.log_id) for one in found)
    removed: list[str] = []
    for one in found:
        left[one.application, one.log_id] -= 1  # how many newer ones there are
        if left[one.application, one.log_id] < keep or one.base or one.snapshot in kept:
            continue
        try:
            (root / one.snapshot).rename(root / f".{one.snapshot}{REMOVED}")  # from here on it is no snapshot
        except FileNotFoundError:  # another one has it
            continue
        removed.append(one.snapshot)
    for gone in root.glob(f".*{REMOVED}"):
        while gone.exists():
            with suppress(FileNotFoundError):  # another one removes it, too
                shutil.rmtree(gone)
    return removed


def _summed(text: bytes) -> bytes:
    """A JSON object with a sum of itself, its last field: what no other file has a sum of."""
    return text[:-1] + SUM + _digest(text).encode() + b'"}'


def _is_as_summed(data: bytes) -> bool:
    """Also where there is no sum: those of older versions have none."""
    text, mark, sum_ = data.rpartition(SUM)
    return not mark or sum_ == _digest(text + b"}").encode() + b'"}'


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SnapshotUnusable(f"{path} cannot be read ({error.strerror}): {ADVICE}") from error


def _parse(path: Path, data: bytes, kind: type[M]) -> M:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotUnusable(f"{path} is no manifest ({error}): {ADVICE}") from error


def _check_format(path: Path, found: int) -> None:
    if found != FORMAT:
        raise SnapshotUnusable(f"{path} has format {found}, this version reads {FORMAT}: use the version that wrote it")
