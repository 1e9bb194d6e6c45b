"""The state directory: `<root>/<application>/<instance>/<task>/<table>/`, one lock per task.

One rule: a process that reads or writes a task's folder holds its lock. The lock is the kernel's (flock): it ends with the
process, however that ends. POSIX only. A stale folder is one that has not been locked or written for a while.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from state import private
from state.errors import DirectoryFull, DirectoryLocked, DirectoryUnusable, StoreDamaged, TooManyFiles
from state.store.rocksdb import Peek, is_there, peek

LOCK_FILE = "lock"
COPIES = ".copies"  # of stores at one moment, for tools; below it a folder for each request
_PROBE = ".probe"


class TableOnDisk(NamedTuple):
    """A table found in the state directory; `problem` says why it cannot be used, and `peek` is None then."""

    path: Path
    peek: Peek | None
    problem: str | None


class TaskLock:
    """Held until `release`, the end of a `with` block, or the end of the process."""

    def __init__(self, path: Path, descriptor: int, held: set[Path]) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._held = held

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)  # the lock goes with it
            self._descriptor = None
            self._held.discard(self.path)

    def __enter__(self) -> TaskLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class HeldFolder:
    """A folder that is held open, so that its number goes to no other: whether it was deleted or replaced is known for sure. Raises
    DirectoryUnusable where it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _clear(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._changed_ns = 0

    def has_changed(self) -> bool:
        """Whether anything in it was made or removed since this was asked before; what lies deeper is not looked at. One call of
        the system, however many tasks there are."""
        before, self._changed_ns = self._changed_ns, os.fstat(self._descriptor).st_mtime_ns
        return self._changed_ns != before

    def is_gone(self) -> bool:
        return not _same_file(self._descriptor, self.path)

    def close(self) -> None:
        os.close(self._descriptor)


class StateDirectory:
    """The folder of one instance. Making one creates it and checks that it can be written (DirectoryUnusable)."""

    def __init__(self, root: Path, application: str, instance: str) -> None:
        self.path = root / _piece(application, "application") / _piece(instance, "instance")
        # What is locked through this object: the kernel's lock is of a file, and who deletes the file makes way for another,
        # while the stores beside it are still open.
        self._held: set[Path] = set()
        with _clear(self.path):
            private.make_folder(self.path)
            for folder in (self.path.parent, self.path):  # not the root: it may belong to all users, such as /tmp
                private.close_to_others(folder)
            probe = self.path / f"{_PROBE}-{os.getpid()}"
            try:
                probe.write_bytes(b"writable?")
            finally:
                probe.unlink(missing_ok=True)  # a full disk makes a file, and writes nothing into it

    def task(self, task: str) -> Path:
        return self.path / _piece(task, "task")

    def table(self, task: str, table: str) -> Path:
        """Where the store of a table lies; the folder itself is made by the store."""
        return self.task(task) / _piece(table, "table")

    def has(self, task: str, table: str) -> bool:
        """Whether the store of a table lies here."""
        return is_there(self.table(task, table))

    def held(self) -> HeldFolder:
        """The folder of the instance as it is now."""
        return HeldFolder(self.path)

    # ------------------------------------------------------------------ locks

    def lock(self, task: str) -> TaskLock:
        """Take the task's folder, making it if need be. Raises DirectoryLocked, at once, with the holder's pid."""
        folder = self.task(task)
        file = folder / LOCK_FILE
        if folder in self._held:
            raise _locked(folder, str(os.getpid()))
        while True:
            with _clear(folder):
                private.make_folder(folder)
                try:
                    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private.FILE)
                except FileNotFoundError:  # another process removed the stale folder at this moment
                    continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                os.close(descriptor)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise DirectoryUnusable(f"the state folder {folder} cannot be locked: {error.strerror}") from error
                raise _locked(folder, holder) from error
            if _same_file(descriptor, file):
                break
            os.close(descriptor)  # removed between open and lock
        try:
            with _clear(folder):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)  # else this process would have the lock for as long as it runs
            raise
        self._held.add(folder)
        return TaskLock(folder, descriptor, self._held)

    # ------------------------------------------------------------------ copies of open stores

    def copies(self, request: str) -> Path:
        """Where the copies of stores lie that one request asked for."""
        return self.path / COPIES / _piece(request, "request")

    def remove_copies(self, *, older_than_ms: int, now_ms: int) -> None:
        """Removes what tools left that did not end in order."""
        for folder in sorted((self.path / COPIES).glob("*")):
            with suppress(FileNotFoundError):
                if now_ms - int(folder.stat().st_mtime * 1000) > older_than_ms:
                    shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------------ what is there

    def tasks(self) -> list[str]:
        """Tasks that have a table on disk, by name. One whose folder may not be looked into may have some: opening it raises."""
        return [folder.name for folder in self._folders() if _may_have_tables(folder)]

    def tables(self, task: str) -> dict[str, TableOnDisk]:
        """What each table of a task says of itself; nothing where its folder may not be looked into. Opens read-only: other processes
        are not disturbed."""
        found: dict[str, TableOnDisk] = {}
        try:
            folders = _tables(self.task(task))
        except PermissionError:
            return found
        for folder in folders:
            try:
                found[folder.name] = TableOnDisk(folder, peek(folder), None)
            except TooManyFiles:
                raise
            except (StoreDamaged, DirectoryUnusable) as error:
                found[folder.name] = TableOnDisk(folder, None, str(error))
        return found

    def _folders(self) -> list[Path]:
        with _clear(self.path):
            return sorted(path for path in self.path.iterdir() if path.is_dir() and not path.name.startswith("."))

    # ------------------------------------------------------------------ clearing

    def wipe(self, task: str, table: str | None = None) -> None:
        """Remove a table, or all tables of a task. The caller holds the lock, which stays."""
        folders = [self.table(task, table)] if table is not None else _tables(self.task(task))
        for folder in folders:
            with _clear(folder):
                if folder.exists():
                    shutil.rmtree(folder)

    def clean(self, keep: Collection[str], *, delay_ms: int, now_ms: int) -> list[str]:
        """Remove the folders of tasks not in `keep` that are not locked and were not written for `delay_ms`: without a
        delay the lock alone decides, and not a clock that may have been set back since. Raises
        DirectoryUnusable of the first that cannot be removed, when the others are gone."""
        removed: list[str] = []
        problem: DirectoryUnusable | None = None
        for folder in self._folders():
            if folder.name in keep or (delay_ms and now_ms - _newest_ms(folder) < delay_ms):
                continue
            try:
                with self.lock(folder.name), _clear(folder):
                    # The lock file goes last and under the lock: a process that opened it meanwhile sees that it is gone.
                    self.wipe(folder.name)
                    (folder / LOCK_FILE).unlink()
                    with suppress(OSError):  # not empty: a worker begins the task anew at this moment
                        folder.rmdir()
            except DirectoryLocked:
                continue
            except DirectoryUnusable as error:
                problem = problem or error
                continue
            removed.append(folder.name)
        if problem is not None:
            raise problem
        return removed


def _locked(folder: Path, holder: str) -> DirectoryLocked:
    return DirectoryLocked(f"the state folder {folder} is in use by process {holder}: wait for it, or stop it")


class _clear:
    """Turns the operating system's errors into DirectoryUnusable with a reason."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, OSError):
            return
        reason = {
            errno.ENOSPC: "has no space left: free some space on its disk",
            errno.EDQUOT: "is over its quota: free some space",
            errno.EACCES: "may not be written: check its permissions",
            errno.EPERM: "may not be written: check its permissions",
            errno.EROFS: "is on a read-only disk: choose another with --state-dir",
            errno.ENOTDIR: "is not a folder: a file has that name",
            errno.EEXIST: "is not a folder: a file has that name",
            errno.EMFILE: "cannot be used: its process has too many files open; raise the limit (`ulimit -n`)",
        }.get(error.errno or 0, f"cannot be used: {error.strerror or error}")
        kind_of = {
            errno.ENOSPC: DirectoryFull,
            errno.EDQUOT: DirectoryFull,
            errno.EMFILE: TooManyFiles,
            errno.ENFILE: TooManyFiles,
        }.get(error.errno or 0, DirectoryUnusable)
        raise kind_of(f"the state folder {self._path} {reason}") from error


def _piece(name: str, what: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name or name == LOCK_FILE:
        raise DirectoryUnusable(
            f"{what} name {name!r} cannot be the name of a folder: no slash, no leading dot, not {LOCK_FILE!r}"
        )
    return name


def _tables(task: Path) -> list[Path]:
    """Raises PermissionError where it may not be looked into, DirectoryUnusable where that cannot be said."""
    try:
        return sorted(path for path in task.iterdir() if path.is_dir()) if task.is_dir() else []
    except PermissionError:
        raise
    except OSError:
        with _clear(task):
            raise


def _may_have_tables(task: Path) -> bool:
    try:
        return bool(_tables(task))
    except PermissionError:
        return True


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    except PermissionError:  # not to be looked at, and so not known to be gone
        return True
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _newest_ms(folder: Path) -> int:
    """When anything in the folder was last written."""
    newest = 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            newest = max(newest, path.stat().st_mtime)
        except (FileNotFoundError, PermissionError):  # a store at work removes files of its own
            continue
    return int(newest * 1000)
