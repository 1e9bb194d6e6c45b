"""A copy of a SQLite log that is in use.

One rule: the copy is the log at one moment, whole, or it is not there: it is written beside its place and renamed once it is
on the disk. No writer waits for it. Run by `orchestrator log backup`.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from state import private
from state.errors import FileTaken, LogMissing, StateError
from state.log.sqlite_file import connect, explain, prepare

BUSY_MS = 10_000


def backup(source: Path, target: Path) -> int:
    """Returns the bytes of the copy. Raises LogMissing, LogUnusable, FileTaken, StateError where it cannot be written."""
    if not source.exists():
        raise LogMissing(f"there is no log {source}: name another one")
    if os.path.lexists(target):
        raise _taken(target)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    connection = connect(source, create=False, synchronous="NORMAL", busy_timeout_ms=BUSY_MS)
    try:
        prepare(connection, source, create=False, busy_timeout_ms=BUSY_MS)
        private.make_file(unfinished)  # no other user may read it while it is written, either
        connection.execute("vacuum into ?", (str(unfinished),))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.link(unfinished, target)  # unlike a rename it never replaces what came meanwhile
        return target.stat().st_size
    except sqlite3.Error as error:
        raise explain(error, source) from error
    except FileExistsError:
        raise _taken(target) from None
    except OSError as error:
        raise StateError(
            f"the backup {target} cannot be written: {error.strerror}; name a folder that takes it"
        ) from error
    finally:
        connection.close()
        unfinished.unlink(missing_ok=True)


def _taken(target: Path) -> FileTaken:
    return FileTaken(f"{target} is there already: name another file, a backup never replaces one")
