"""Rows of history that are no records of their topic: set aside where the user says so, and counted.

One rule: a row is set aside whole, with its file, its place and the reason, and nothing is committed where there are more
than allowed. An executor writes one file of them for each part of a file that it reads; the driver gathers these.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import WrongUse
from orchestrator.names import counted
from pipeline.files.shape import BadRow, OnBad

SUFFIX = ".jsonl"
FACTS = ("file", "where", "why", "row")


class BadRecords(msgspec.Struct, frozen=True):
    """What the options say: where such rows go, and how many there may be (-1: any number)."""

    folder: str
    most: int = -1


class TooManyBad(WrongUse):
    """History has more rows that are no records than --max-bad allows."""


@contextmanager
def set_aside(folder: Path, part: int, attempt: int, file: str) -> Iterator[OnBad]:
    """On an executor: takes the bad rows of one part of a file."""
    draft = folder / f".{part}.{attempt}"  # the folder is the driver's: an attempt that comes too late has none
    kept = None

    def on_bad(error: BadRow, row: Any) -> None:
        nonlocal kept
        if kept is None:
            kept = draft.open("wb")
        facts = dict(zip(FACTS, (file, error.where, error.why, row), strict=True))
        kept.write(msgspec.json.encode(facts, enc_hook=repr) + b"\n")

    try:
        yield on_bad
    finally:
        if kept is not None:
            kept.close()
    if kept is not None:
        draft.rename(folder / f"{part:06}{SUFFIX}")


def target_of(folder: Path, topic: str) -> Path:
    """The file for the rows of a topic, which replaces one of a run before. Raises WrongUse where another file is called so: history of
    the topic may be."""
    target = folder / f"{topic}{SUFFIX}"
    if target.is_dir() or (target.exists() and not _is_of_a_run(target)):
        raise WrongUse(
            f"--bad-records {folder}: rows of '{topic}' would go to {target}, which is there and is none of these files; name another folder"
        )
    return target


def _is_of_a_run(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        return not line or tuple(msgspec.json.decode(line)) == FACTS
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return len(line) == 1 << 20 and line.startswith(b'{"file":')


def gather(work: Path, topic: str, bad: BadRecords) -> int:
    """In the driver: puts what the executors have set aside of a topic where the user wants it; returns how many rows that
    is. Raises TooManyBad, WrongUse."""
    gathered = work / f"{topic}-gathered"
    (work / topic).rename(gathered)
    found = sorted(gathered.glob(f"*{SUFFIX}"))
    count, first = 0, None
    target = target_of(Path(bad.folder), topic)
    target.unlink(missing_ok=True)  # of a run before: its rows may be corrected by now
    if found:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as all_of_them:
            for path in found:
                with path.open("rb") as part:
                    for line in part:
                        first = first or line
                        count += 1
                        all_of_them.write(line)
    shutil.rmtree(gathered, ignore_errors=True)
    if first is not None and 0 <= bad.most < count:
        facts = msgspec.json.decode(first)
        raise TooManyBad(
            f"{counted(count, 'row')} of history of '{topic}' {'is' if count == 1 else 'are'} no record, more than --max-bad "
            f"{bad.most}; all of them are in {target}; the first: {facts['file']}, {facts['where']}: {facts['why']}"
        )
    return count
