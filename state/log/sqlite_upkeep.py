"""What a SQLite log removes: overwritten records, consumed ones, those past their retention; and the pages they lay on.

One rule: a transaction is small. A commit meanwhile waits for one of these, never for all that is to go. Run in the
writing thread, by `state.log.sqlite`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from state.clocks import monotonic_s
from state.log import checks
from state.log.compaction import Pass, Rewrite
from state.log.protocol import Partition, Retention, TopicInfo
from state.log.sqlite_file import explain
from state.log.sqlite_writer import INSERT, PAGE, Writer, find_part, find_topic

ROWS_AT_ONCE = 16  # batches of at most 256 KiB
PAGES_AT_ONCE = 256
_A_ROW = PAGE // 2  # that is removed: it shares its pages with others
# About as long a transaction may take: pages that the system has no copy of come from the disk, one by one
TURN_S = 0.01
_FORGETS = "insert into forgotten values (?, ?) on conflict (part) do update set below = max(below, excluded.below)"


class Upkeep:
    """See the module text."""

    def __init__(self, writer: Writer, path: Path) -> None:
        self._writer = writer
        self._path = path
        self._pages = PAGES_AT_ONCE // 4  # until it is known how long that takes

    def replace(self, part: int, rewrites: Sequence[Rewrite], forgotten: int = 0) -> int | None:
        """Applies some of what compaction decided, the first ones; it leaves out deletions below `forgotten`. Returns how many of
        them, at least one, and None, and does nothing, where the batches are not the ones it saw."""
        some = _of_one_turn(rewrites)
        until, applied = monotonic_s() + TURN_S, 0
        try:
            with self._writer.transaction(sum(_changed(rewrite) for rewrite in some)) as db:
                for rewrite in some:
                    _replace(db, part, rewrite)
                    applied += 1
                    if monotonic_s() >= until:
                        break
                if forgotten:
                    db.execute(_FORGETS, (part, forgotten))
        except _Stale:
            return None
        return applied

    def compacted(self, part: int, passes: Sequence[Pass]) -> None:
        """Remembers these passes over a partition, in place of those that were."""
        with self._writer.transaction() as db:
            db.execute("delete from compactions where part = ?", (part,))
            db.executemany("insert into compactions values (?, ?, ?)", [(part, *one) for one in passes])

    def trim(self, partition: Partition, position: int) -> tuple[int, bool]:
        """Removes some of the batches before a position, the first ones. Returns how many records that were, and whether
        all are gone. Raises UnknownTopic."""
        with self._writer.transaction(ROWS_AT_ONCE * _A_ROW) as db:
            part = find_part(db, partition)
            rows = db.execute(
                "select id, records from batches where part = ? and base < ? and next <= ? order by base limit ?",
                (part.id, position, position, ROWS_AT_ONCE),
            ).fetchall()
            removed = gone = 0
            until = monotonic_s() + TURN_S
            for identity, records in rows:
                db.execute("delete from batches where id = ?", (identity,))
                removed, gone = removed + records, gone + 1
                if monotonic_s() >= until:
                    break
            first = db.execute("select min(base) from batches where part = ?", (part.id,)).fetchone()[0]
            start = min(position, part.end) if first is None else min(first, position)
            db.execute("update parts set start = max(start, ?) where id = ?", (start, part.id))
        return removed, gone == len(rows) < ROWS_AT_ONCE

    def set_retention(self, name: str, retention: Retention) -> TopicInfo:
        """Raises UnknownTopic, StateError."""
        with self._writer.transaction() as db:
            checks.plain(find_topic(db, name), name)
            db.execute("insert or replace into retentions values (?, ?, ?, ?)", (name, *retention))
            found = find_topic(db, name)
            assert found is not None
            return found

    def shrink(self) -> int:
        """Gives some free pages back to the file system, fewer where that takes long; returns how many are left. Raises
        StateError."""
        self._writer.identity.check()
        began = monotonic_s()
        try:
            # A pragma without columns: `execute` would take one step of it, which is one page.
            self._writer.db.executescript(f"pragma incremental_vacuum({self._pages:d})")
            took = monotonic_s() - began
            if self._writer.wrote is not None:
                self._writer.wrote(2 * self._pages)  # where each goes, and who points at it
            if took > TURN_S:
                self._pages = max(1, self._pages // 2)
            elif took < TURN_S / 4:
                self._pages = min(PAGES_AT_ONCE, self._pages * 2)
            return int(self._writer.db.execute("pragma freelist_count").fetchone()[0])
        except sqlite3.Error as error:
            raise explain(error, self._path) from error


class _Stale(Exception):
    """Another process compacted meanwhile: applying this rewrite would bring old values back."""


def _of_one_turn(rewrites: Sequence[Rewrite]) -> Sequence[Rewrite]:
    """The first ones, until so many batches are replaced."""
    replaced = 0
    for number, rewrite in enumerate(rewrites, 1):
        replaced += len(rewrite.replaced)
        if replaced >= ROWS_AT_ONCE:
            return rewrites[:number]
    return rewrites


def _changed(rewrite: Rewrite) -> int:
    """Bytes of the file, about."""
    return len(rewrite.replaced) * _A_ROW + (len(rewrite.batch.data) if rewrite.batch is not None else 0)


def _replace(db: sqlite3.Connection, part: int, rewrite: Rewrite) -> None:
    for identity in rewrite.replaced:
        if not db.execute("delete from batches where id = ? and part = ?", (identity, part)).rowcount:
            raise _Stale
    if rewrite.batch is not None:
        row = (part, rewrite.base, rewrite.next, rewrite.time_ms, rewrite.batch.records, rewrite.batch.data)
        db.execute(INSERT, row)
