"""The SQLite file of a log: its tables, how it is opened, and what its errors mean to a person.

One rule: a file that is not a log of a format we know is never written. Below state.log.sqlite; knows no threads.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from state import private
from state.clocks import monotonic_s
from state.errors import LogBusy, LogFull, LogMissing, LogUnusable, StateError
from state.log.sqlite_parts import ENDINGS, LOOK_AGAIN_S, check_whole

Synchronous = Literal["NORMAL", "FULL"]

APPLICATION_ID = 0x534F4C47
COPY_ID = 0x534F4C43  # of a copy that nobody has opened yet: what lies beside it under its name is another log's
FORMAT = 1
_PAUSE_S = 0.001
_MADE_S = 1.0

_TABLES = (
    "create table facts (name text primary key, value text not null) without rowid",
    "create table topics (name text primary key, topic_id text not null, partitions int not null, kind text not null)"
    " without rowid",
    "create table parts (id integer primary key autoincrement, topic text not null, number int not null,"
    " start int not null default 0, next int not null default 0, unique (topic, number))",
    "create table batches (id integer primary key autoincrement, part int not null, base int not null,"
    " next int not null, time_ms int not null, records int not null, data blob not null, unique (part, base))",
    "create table positions (application text, topic text, number int, position int not null,"
    " primary key (application, topic, number)) without rowid",
    "create table owners (application text, scope text, epoch int not null, member text not null,"
    " writer text not null, term int not null, primary key (application, scope)) without rowid",
    "create table fenced (application text, writer text, primary key (application, writer)) without rowid",
    "create table leases (application text primary key, term int not null, holder text not null,"
    " address text not null, beat int not null) without rowid",
    "create table notes (application text, kind text, key text, value blob not null,"
    " primary key (application, kind, key)) without rowid",
)
# What came later: versions that do not know a table leave it alone.
_ADDED = {
    "commit_times": "create table if not exists commit_times (application text, topic text, number int, position int not null,"
    " at_ms int not null, primary key (application, topic, number)) without rowid",
    "compactions": "create table if not exists compactions (part int not null, through int not null, at_ms int not null)",
    "forgotten": "create table if not exists forgotten (part integer primary key, below int not null)",
    "retentions": "create table if not exists retentions (topic text primary key, ms int, bytes int,"
    " forced int not null) without rowid",
}


def explain(error: sqlite3.Error, path: Path) -> StateError:
    """The project's error for one of SQLite's."""
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LogBusy(f"another process holds the log {path} locked; nothing was written. Is one of them stopped?")
    if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return LogFull(f"the log {path} has no space left to grow: free some space on its disk ({error})")
    if code == sqlite3.SQLITE_CANTOPEN and path.is_dir():
        return LogUnusable(f"the log {path} is a folder: name the file in it ({error})")
    text = {
        sqlite3.SQLITE_READONLY: "may not be written: check its permissions and those of its folder",
        sqlite3.SQLITE_PERM: "may not be opened: check its permissions",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists, and that it and its folder may be read and written",
        sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a copy, or start a new one",
        sqlite3.SQLITE_NOTADB: "is not a log: name another file, or move this one away",
        sqlite3.SQLITE_IOERR: "cannot be read or written: check its disk",
        sqlite3.SQLITE_TOOBIG: "cannot take a record this large",
    }.get(code)
    if text is None:
        return StateError(f"the log {path} could not do this ({error})")
    return LogUnusable(f"the log {path} {text} ({error})")


def connect(path: Path, *, create: bool, synchronous: Synchronous, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection in autocommit mode; the file and its folder are made if `create`. Checks nothing inside.
    Raises StateError, LogMissing, LogUnusable."""
    if synchronous not in ("NORMAL", "FULL"):
        raise StateError(f"synchronous of the log {path} must be NORMAL or FULL, not {synchronous!r}")
    if not path.exists():
        if not create:
            raise LogMissing(f"no log at {path}: check the path, or start an application to make one")
        try:
            private.make_folder(path.parent)
            private.make_file(path)  # SQLite gives its -wal and -shm the rights of the file
        except OSError as error:
            raise LogUnusable(f"the folder of the log {path} cannot be made: {error.strerror}") from error
    if path.is_fifo():  # to open it waits for somebody to write
        raise LogUnusable(f"the log {path} is a pipe: name a file")
    check_whole(path)
    uri = f"file:/{quote(str(path.absolute()).lstrip('/'))}"  # behind two slashes SQLite looks for a host
    _begin_copy(path, uri, busy_timeout_ms)
    try:
        connection = sqlite3.connect(
            f"{uri}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise explain(error, path) from error
    try:
        connection.execute(f"pragma synchronous={synchronous}")
        connection.execute("pragma temp_store=memory")
        # Some builds (Debian's) write zeros over what is removed: a page each, as much to write again as there was to remove.
        connection.execute("pragma secure_delete=off")
        connection.execute("pragma wal_autocheckpoint=0")  # state/log/sqlite_checkpoints.py
    except sqlite3.Error as error:
        connection.close()
        raise explain(error, path) from error
    return connection


def _begin_copy(path: Path, uri: str, busy_timeout_ms: int) -> None:
    """Make a log of a copy, before a write-ahead log is looked at: SQLite would write one that was left where the copy was put over
    it. All by way of SQLite: to open and close the file by other means would release this process's locks on it. Raises
    LogUnusable."""
    alone = f"{uri}?mode=ro&immutable=1"  # neither locks nor a write-ahead log
    if _id_in(alone) != COPY_ID:
        return
    left = path.with_name(f"{path.name}-wal")
    if left.exists() and left.stat().st_size and _id_in(alone) == COPY_ID:  # else another process was faster
        raise LogUnusable(
            f"the log {path} is a backup, and {left.name} beside it is of the log that was here before: end what runs on "
            f"that, remove {left.name} and {path.name}-shm, and start again"
        )
    try:
        with contextlib.closing(sqlite3.connect(f"{uri}?mode=rw", uri=True, timeout=busy_timeout_ms / 1000)) as db:
            db.execute(f"pragma application_id={APPLICATION_ID}")
    except sqlite3.Error as error:
        raise explain(error, path) from error


def _id_in(uri: str) -> object:
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            return _scalar(db, "pragma application_id")
    except sqlite3.Error:
        return None  # who opens it in earnest says why


def begin(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    """BEGIN IMMEDIATE, tried again every few milliseconds (SQLite's own waiting grows to 100 ms and is unfair)."""
    deadline = monotonic_s() + busy_timeout_ms / 1000
    pause = _PAUSE_S
    connection.execute("pragma busy_timeout=0")
    try:
        while True:
            try:
                connection.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or monotonic_s() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, LOOK_AGAIN_S)
    finally:
        connection.execute(f"pragma busy_timeout={busy_timeout_ms:d}")


def prepare(connection: sqlite3.Connection, path: Path, *, create: bool, busy_timeout_ms: int) -> str:
    """Make the tables of an empty file, or check that this is a log we can read; returns its log id.
    Raises LogUnusable."""
    try:
        if _scalar(connection, "pragma application_id") != APPLICATION_ID:
            _make(connection, path, create=create, busy_timeout_ms=busy_timeout_ms)
        found = _scalar(connection, "pragma user_version")
        if found != FORMAT:
            raise LogUnusable(
                f"the log {path} has format {found}, this version reads {FORMAT}: use the version that wrote it"
            )
        _add_tables(connection, busy_timeout_ms)
        if _wal(connection, busy_timeout_ms) != "wal":
            raise LogUnusable(f"the log {path} cannot use write-ahead logging: put it on a local disk")
        for ending in ENDINGS:  # an older version left them open
            private.close_to_others(path.with_name(f"{path.name}{ending}"))
        return str(_scalar(connection, "select value from facts where name = 'log_id'"))
    except sqlite3.Error as error:
        raise explain(error, path) from error


def _make(connection: sqlite3.Connection, path: Path, *, create: bool, busy_timeout_ms: int) -> None:
    if _foreign(connection):
        raise LogUnusable(f"{path} is an SQLite file but not a log: name another file, or move this one away")
    if not create:
        if _made_by_another(connection, busy_timeout_ms):
            return
        raise LogUnusable(
            f"the log {path} is empty: it was never started, or was cut off; restore a backup of it, or remove it"
        )
    connection.execute("pragma auto_vacuum=incremental")
    _wal(connection, busy_timeout_ms)
    begin(connection, busy_timeout_ms)
    try:
        if _scalar(connection, "pragma application_id") != APPLICATION_ID:  # else another process was faster
            for table in (*_TABLES, *_ADDED.values()):
                connection.execute(table)
            connection.execute("insert into facts values ('log_id', ?)", (str(uuid.uuid4()),))
            connection.execute(f"pragma application_id={APPLICATION_ID}")
            connection.execute(f"pragma user_version={FORMAT}")
        connection.execute("commit")
    except BaseException:
        _take_back(connection)
        raise


def _add_tables(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    """Give a log of an earlier version the tables that came later."""
    for name, statement in _ADDED.items():
        if _scalar(connection, f"select count(*) from sqlite_master where name = '{name}'") == 0:
            begin(connection, busy_timeout_ms)
            try:
                connection.execute(statement)  # unless another process was faster
                connection.execute("commit")
            except BaseException:
                _take_back(connection)
                raise


def _take_back(connection: sqlite3.Connection) -> None:
    """After some errors, as of a disk that is full, SQLite has done that itself."""
    if connection.in_transaction:
        connection.execute("rollback")


def _made_by_another(connection: sqlite3.Connection, busy_timeout_ms: int) -> bool:
    """Whether another process, which has made the file a moment ago, makes a log of it."""
    deadline = monotonic_s() + min(busy_timeout_ms / 1000, _MADE_S)
    while _scalar(connection, "pragma application_id") != APPLICATION_ID:
        if monotonic_s() >= deadline:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True


def _foreign(connection: sqlite3.Connection) -> bool:
    """Whether it has tables of another program. One statement, so that another's first start is seen whole."""
    tables = _scalar(connection, "select count(*) from sqlite_master")
    ours = _scalar(connection, "pragma application_id") == APPLICATION_ID
    return bool(tables) and not ours


def _wal(connection: sqlite3.Connection, busy_timeout_ms: int) -> str:
    """Switch to WAL; another process doing the same at this moment makes SQLite answer busy without waiting."""
    deadline = monotonic_s() + busy_timeout_ms / 1000
    while True:
        try:
            return str(_scalar(connection, "pragma journal_mode=wal"))
        except sqlite3.OperationalError:
            if monotonic_s() >= deadline:
                raise
        time.sleep(LOOK_AGAIN_S)


def _scalar(connection: sqlite3.Connection, statement: str) -> object:
    row = connection.execute(statement).fetchone()
    return row[0] if row else None
