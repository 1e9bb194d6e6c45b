"""Copies what was committed from the write-ahead file of a SQLite log into the log itself, beside its writers.

One rule: at any moment one checkpoint, of all processes on the log, and it begins with a commit of its own. SQLite before 3.51.3
loses what was committed where a checkpoint begins, with nothing left to copy, at the moment in which a commit begins the write-ahead
file anew (https://www.sqlite.org/wal.html, "The WAL-Reset Bug"). After its own commit there is something to copy, and nobody
else copies: no commit begins the file anew until this checkpoint is through. So no connection of ours has SQLite's own
checkpoints, which are part of a commit besides: it waited for the disk. Run in a thread of its own, by `state.log.sqlite`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from state.errors import LogBusy, StateError
from state.log.sqlite_file import begin, explain
from state.log.sqlite_parts import LOOK_AGAIN_S, FileIdentity

log = logging.getLogger("orchestrator.log")
PAGES = 1_000  # that this process writes between two
BUSY_MS = 500  # for which one waits to write: the next one comes soon, and a process that ends waits for it
_FEW = 500  # left to copy: so many hold up no writer for long
_ROUNDS = 4
_LONG = 16_000  # of the write-ahead file: from there on the writers wait for it to begin anew
_READERS_MS = 20  # for which they wait for a reader that needs its end
_KEPT = 64 << 20  # bytes of it that stay, written anew again and again
_GIVEN_BACK = 32 << 20  # at once: so many hold up no writer for long


class Checkpoints:
    """`connect` opens a connection for nothing but this, with a busy timeout of `busy_timeout_ms`."""

    def __init__(self, identity: FileIdentity, connect: Callable[[], sqlite3.Connection], busy_timeout_ms: int) -> None:
        self._path = identity.path
        self._ahead = identity.path.with_name(f"{identity.path.name}-wal")
        self._identity = identity
        self._connect = connect
        self._busy_timeout_ms = busy_timeout_ms
        self._db: sqlite3.Connection | None = None
        self._pages = 0
        self._thread = ThreadPoolExecutor(1, "log-checkpoint")
        self._running: Future[None] | None = None

    def wrote(self, pages: int) -> None:
        """A transaction of this process is through. Called in its writing thread."""
        self._pages += pages
        if self._pages >= PAGES and (self._running is None or self._running.done()):
            self._pages = 0
            self._running = self._thread.submit(self._run)

    def close(self) -> None:
        """Waits for one that runs. No transaction may follow."""
        if self._running is not None:
            self._thread.submit(self._end).result()
        self._thread.shutdown()

    def _end(self) -> None:
        if self._db is not None:
            self._db.close()

    def _run(self) -> None:
        try:
            with self._alone() as is_alone:
                if is_alone:
                    self._checkpoint()
        except LogBusy as error:
            log.info("no checkpoint: %s", error)
        except StateError as error:  # writers meet it too, and say so to whom it concerns
            log.warning("no checkpoint: %s", error)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process is at it. A lock of the folder: a file beside the log could be removed, and the log itself
        must not be opened by other means than SQLite's (closing it would free SQLite's own locks)."""
        folder = self._path.parent
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StateError(f"the folder of the log {self._path} cannot be opened: {error.strerror}") from error
        try:
            yield _locked(descriptor, folder)
        finally:
            os.close(descriptor)

    def _checkpoint(self) -> None:
        try:
            self._identity.check()
            if self._db is None:
                self._db = self._connect()
                self._identity.check()
            self._commit(self._db)
            length, copied = self._copy(self._db, "passive")
            if length > _LONG and self._caught_up(self._db, copied):  # there was a commit in each of them
                self._commit(self._db)
                self._copy(self._db, "restart")
            self._shorten(self._db)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    def _caught_up(self, db: sqlite3.Connection, copied: int) -> bool:
        """Copies until few pages are left, for which the writers will wait; returns whether they should. They wrote on while this copied, so
        the end that SQLite names is old: few are left where a round copied few. Or a reader stands before them, and the wait would
        be in vain, at each checkpoint until it has gone."""
        length, before = copied, 0
        for _ in range(_ROUNDS):
            before = copied
            self._commit(db)
            length, copied = self._copy(db, "passive")
            if copied - before <= _FEW:  # or the file began anew
                break
        is_held = copied == before and length - copied > _FEW
        return length > _LONG and not is_held

    def _shorten(self, db: sqlite3.Connection) -> None:
        """Gives back what is longer than it has to be, each time that a commit of this connection begins the file anew. A log at rest
        has its next checkpoint in minutes."""
        size = self._size()
        while size > _KEPT:
            self._commit(db)
            before, size = size, self._size()
            if size >= before:  # a reader is there, or a writer was faster
                return
            self._copy(db, "passive")
            time.sleep(LOOK_AGAIN_S)  # whoever waits to write comes to look

    def _size(self) -> int:
        """Bytes of the write-ahead file, also those that are written anew."""
        try:
            return self._ahead.stat().st_size
        except FileNotFoundError:
            return 0

    def _commit(self, db: sqlite3.Connection) -> None:
        """Something to copy that is this connection's. Where it begins the file anew, the file becomes shorter: no other connection
        has a limit, which would give back a gigabyte within a commit, and all writers wait for that."""
        db.execute(f"pragma journal_size_limit={max(_KEPT, self._size() - _GIVEN_BACK):d}")
        begin(db, self._busy_timeout_ms)
        try:
            db.execute(
                "insert into facts values ('checkpoints', 1) on conflict do update set value = cast(value as int) + 1"
            )
            db.execute("commit")
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            raise

    def _copy(self, db: sqlite3.Connection, how: str) -> tuple[int, int]:
        """Pages in the write-ahead file, and how many of them are in the log."""
        db.execute(f"pragma busy_timeout={_READERS_MS}")
        _, length, copied = db.execute(f"pragma wal_checkpoint({how})").fetchone()
        return length, copied


def _locked(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StateError(f"the folder {folder} cannot be locked: {error.strerror}") from error
    return True
