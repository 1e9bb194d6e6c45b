"""A copy of a SQLite log that is in use.

One rule: the copy is the log at one moment, whole, or it is not there: it is written beside its place and renamed once it is
on the disk. No writer waits for it. Nobody runs on a copy: it does not say where the coordinator of the log listens, which
would be asked, and scaled, for a question to the copy. Run by `orchestrator log backup`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Collection
from pathlib import Path

from state import private
from state.errors import FileTaken, LogMissing, StateError
from state.log.group_store import MetadataKind
from state.log.sqlite_file import COPY_ID, connect, explain, prepare

BUSY_MS = 10_000


def backup(source: Path, target: Path, forget: Collection[MetadataKind] = ()) -> int:
    """Returns the bytes of the copy, which has no notes of the kinds to `forget`. Raises LogMissing, LogUnusable, FileTaken, StateError where it cannot be written."""
    if not source.exists():
        raise LogMissing(f"there is no log {source}: name another one")
    if target.is_dir():
        raise _refused(target, "that is a folder")
    if os.path.lexists(target):
        raise _taken(target)
    unfinished = target.with_name(
        f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part"
    )  # pids come again, in containers at once
    connection = connect(source, create=False, synchronous="NORMAL", busy_timeout_ms=BUSY_MS)
    try:
        prepare(connection, source, create=False, busy_timeout_ms=BUSY_MS)
        private.make_file(unfinished)  # no other user may read it while it is written, either
        _write(connection, unfinished, target, forget)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.link(unfinished, target)  # unlike a rename it never replaces what came meanwhile
        return target.stat().st_size
    except sqlite3.Error as error:
        raise explain(error, source) from error
    except FileExistsError:
        raise _taken(target) from None
    except OSError as error:
        raise _refused(target, error.strerror) from error
    finally:
        connection.close()
        for part in (unfinished, unfinished.with_name(f"{unfinished.name}-journal")):  # a full disk leaves both
            part.unlink(missing_ok=True)


def _write(connection: sqlite3.Connection, unfinished: Path, target: Path, forget: Collection[MetadataKind]) -> None:
    """What is full here is the disk of the copy: the log itself does not grow."""
    try:
        connection.execute("vacuum into ?", (str(unfinished),))
        _of_nobody(unfinished, forget)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise _refused(target, "no space is left on its disk") from error
        raise


def _of_nobody(copy: Path, forget: Collection[MetadataKind]) -> None:
    """The lease keeps its term, which the next one is to exceed. Its first connection makes a log of it."""
    with contextlib.closing(sqlite3.connect(copy)) as db, db:
        db.execute(f"pragma application_id={COPY_ID}")
        db.execute("update leases set address = ''")
        db.executemany("delete from notes where kind = ?", [(kind.name,) for kind in forget])


def _refused(target: Path, why: str | None) -> StateError:
    return StateError(f"the backup {target} cannot be written: {why}; name a file in a folder that takes it")


def _taken(target: Path) -> FileTaken:
    return FileTaken(f"{target} is there already: name another file, a backup never replaces one")
