"""Log URLs: `sqlite:PATH`, `kafka://HOST:PORT`, `memory:`. One rule: a command that only reads never creates a log.

What opens a kind of log is imported with the first log of that kind.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import WrongUse
from state.log.protocol import GroupLog
from state.private import make_folder

FOLDER = ".orchestrator"
BUSY_MS = 2_000  # of those who wait by themselves, and say so


class NoLog(WrongUse):
    """No log where one was looked for."""


def default_log(application: str, start: Path, *, existing: bool) -> str:
    """`.orchestrator/<application>.db`, looked for upwards from `start` as git does; below `start` if there is none.
    Raises NoLog."""
    for folder in (start, *start.parents):
        candidate = folder / FOLDER / f"{application}.db"
        if candidate.exists():
            return f"sqlite:{candidate}"
    if existing:
        raise NoLog(
            f"no log of application '{application}' in {start / FOLDER} or above; start it with `orchestrator run`, "
            "or name its log with --log"
        )
    return f"sqlite:{start / FOLDER / f'{application}.db'}"


def log_path(url: str) -> Path | None:
    """The file of a SQLite log."""
    return Path(url.removeprefix("sqlite:")) if url.startswith("sqlite:") else None


async def open_log(url: str, *, create: bool, synchronous: str = "NORMAL", busy_timeout_ms: int = 10_000) -> GroupLog:
    """Open the log that a URL names. Calls wait for a locked log for `busy_timeout_ms`, then raise LogBusy. Raises
    WrongUse for an unknown kind, StateError for an unusable one."""
    if url.startswith("sqlite:"):
        from state.log.sqlite import open_sqlite

        path = Path(url.removeprefix("sqlite:"))
        if not str(path) or str(path) == ".":
            raise WrongUse(f"--log {url}: no path; write sqlite:PATH")
        if create:
            try:
                make_folder(path.parent)
            except OSError as error:
                raise WrongUse(
                    f"--log {url}: the folder {path.parent} cannot be made ({error.strerror}); name another path"
                ) from None
        return await open_sqlite(
            path,
            create=create,
            synchronous="FULL" if synchronous == "FULL" else "NORMAL",
            busy_timeout_ms=busy_timeout_ms,
        )
    if url == "memory:":
        raise WrongUse("--log memory: lives in one process; it is for tests and for app.run()")
    if url.startswith("kafka://"):
        from state.log.kafka.log import open_kafka
        from state.log.kafka.url import parse

        return await open_kafka(parse(url))
    raise WrongUse(f"--log {url}: unknown kind of log; write sqlite:PATH or kafka://HOST:PORT")


def show_log(url: str) -> str:
    """The log as the console names it: a path below the current folder is shown relative, a cluster without options."""
    path = log_path(url)
    if path is None:
        return f"log {url.partition('?')[0]}"
    try:
        shown = path.resolve().relative_to(Path.cwd())
    except ValueError:
        shown = path
    return f"embedded log {shown}, no broker"
