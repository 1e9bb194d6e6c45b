"""Log URLs: `sqlite:PATH`, `kafka://HOST:PORT`, `memory:`. One rule: a command that only reads never creates a log.

What opens a kind of log is imported with the first log of that kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from orchestrator.errors import WrongUse
from state.log.protocol import GroupLog
from state.private import make_folder

FOLDER = ".orchestrator"
_CONFIG = "config="
BUSY_MS = 2_000  # of callers that wait by themselves, and report it


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


def log_url(args: Any, application: str, *, existing: bool) -> str:
    """The URL of the log from the options `--log` and `--kafka-config` of a command. Raises WrongUse, NoLog."""
    url = args.log or default_log(application, Path.cwd(), existing=existing)
    if "kafka-config" in args.flags and not url.startswith("kafka://"):
        raise WrongUse(f"--kafka-config has no effect here: the log is {url}; leave it out, or name a log on Kafka")
    return configured(url, args.kafka_config)


def configured(url: str, config: str) -> str:
    """The URL with the client settings' file in it, absolute: every process opens the log with them, and what they say
    is in no spec. Raises WrongUse."""
    if not url.startswith("kafka://"):
        return url
    place, _, query = url.partition("?")
    options = [one for one in query.split("&") if one]
    named = [one for one in options if one.startswith(_CONFIG)]
    if named and config:
        raise WrongUse(f"--kafka-config {config}: --log names another file (config=...); keep one of them")
    path = config or (unquote(named[0].removeprefix(_CONFIG)) if named else "")
    if not path:
        return url
    others = [one for one in options if one not in named]
    return f"{place}?{'&'.join([*others, _CONFIG + quote(str(Path(path).absolute()))])}"


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


def no_broker(url: str) -> str:
    """What a start says behind an embedded log's name: nothing else has to run."""
    return ", no broker" if log_path(url) is not None else ""


def show_log(url: str) -> str:
    """The log as the console names it: a path below the current folder is shown relative, a cluster without options."""
    path = log_path(url)
    if path is None:
        return f"log {url.partition('?')[0]}"
    try:
        shown = path.resolve().relative_to(Path.cwd())
    except ValueError:
        shown = path
    return f"embedded log {shown}"
