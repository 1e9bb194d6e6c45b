"""Whether the file of a SQLite log is whole: SQLite's own look at every page, and the checksum of every record batch.

One rule: it only looks. Apps may run meanwhile. Readers notice a row that an index has lost where records lie behind one another
without gaps, which those of a compacted changelog do not. Run by `orchestrator log check`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from state.errors import LogMissing
from state.log.batches import ADVICE, damage_in, stored
from state.log.sqlite_file import connect, explain, prepare

BUSY_MS = 10_000
_MANY = 100
_AT_ONCE = 20
_BATCHES = (
    "select b.id, p.topic, p.number, b.base, b.next, b.data from batches b join parts p on p.id = b.part"
    " where b.id > ? order by b.id limit ?"
)
_OF_INDEXES = ("missing from index ", "wrong # of entries in index ", "non-unique entry in index ")


def problems(path: Path) -> list[str]:
    """What is wrong, a hundred lines at most; none where the file is whole. Raises LogMissing, LogUnusable."""
    if not path.exists():
        raise LogMissing(f"there is no log {path}: name another one")
    with contextlib.closing(connect(path, create=False, synchronous="NORMAL", busy_timeout_ms=BUSY_MS)) as connection:
        prepare(connection, path, create=False, busy_timeout_ms=BUSY_MS)
        try:
            rows = [str(row) for (row,) in connection.execute(f"pragma integrity_check({_MANY})")]
        except sqlite3.Error as error:
            raise explain(error, path) from error
        found = [line for row in rows for line in row.splitlines() if not line.startswith("*** in database")]
        found = [] if found == ["ok"] else found
        try:
            for line in _of_batches(connection):
                if len(found) >= _MANY:
                    break
                found.append(line)
        except sqlite3.Error as error:
            if not found:  # else it is known why pages cannot be read
                raise explain(error, path) from error
    return found


def _of_batches(connection: sqlite3.Connection) -> Iterator[str]:
    """A line for each batch that is not what was written. A few at a time: a look that lasts would keep the log from shrinking."""
    last, more = 0, True
    while more:
        more = False
        for place, topic, number, base, end, data in connection.execute(_BATCHES, (last, _AT_ONCE)):
            last, more = place, True
            if wrong := damage_in(stored(data, base, end)):
                yield f"{topic}-{number}: {wrong}"


def are_of_indexes(found: list[str]) -> bool:
    """Whether the rows of the tables may all be there: indexes alone lack some."""
    return any(mark in line for line in found for mark in _OF_INDEXES) and not any(ADVICE in line for line in found)
