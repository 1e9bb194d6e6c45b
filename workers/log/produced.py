"""What was produced of a file: kept in the log as a digest of its content, and found again by it.

One rule: a file goes on only where all that was read of it before is still its beginning; so a file that grew goes on,
one that was renamed goes on, and one that was replaced under its name begins anew. Two runs over one new file have the
same entry, and compare-and-set lets one of them through.
In the flow: `produce` begins a file, and commits `progress()` with each batch of records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pipeline.files import parquet, text
from pipeline.files.parts import BROKEN, broken, check, kind_of
from pipeline.files.shape import BadFile, BadRow, FileRecord, Reading, Shape
from pipeline.files.text import Tail, opened
from state.log.group_store import AppMetadata, GroupStore, MetadataKind

PROGRESS = MetadataKind("produce")
CHUNK = 1 << 20
NO_TEXT = {  # how files begin that have no lines
    b"PK\x03\x04": "it is a workbook or another zip archive, of which CSV can be saved",
    b"PAR1": "it is Parquet",
    b"\x1f\x8b": "it is compressed (gzip)",
    b"BZh": "it is compressed (bzip2)",
    b"\xfd7zX": "it is compressed (xz)",
}


class Progress(msgspec.Struct, frozen=True):
    """Of a text file: how many bytes and lines were read, and their digest. Of a Parquet file: how many rows."""

    bytes: int = 0
    lines: int = 0
    digest: str = ""
    rows: int = 0


class Begun:
    """A file that is read, from where it was left. `lines` is its open text, or None for Parquet."""

    def __init__(
        self, path: Path, reading: Reading, shape: Shape, kind: str, name: str, seen: bytes | None, tail: Tail | None
    ) -> None:
        self._path = path
        self._reading, self._shape = reading, shape
        self._kind = kind
        self._name = name
        self._seen = seen
        self._tail = tail
        self._rows = 0 if seen is None else msgspec.json.decode(seen, type=Progress).rows

    @property
    def is_known(self) -> bool:
        """Whether some of it was produced before."""
        return self._seen is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._tail is not None:
            self._tail.close()

    def records(self) -> Iterator[FileRecord]:
        """What was not read before. Raises BadRow, which names the file; BadFile."""
        tail = self._tail
        try:
            for record in self._parquet() if tail is None else self._text(tail):
                self._rows = record.line
                if tail is not None:
                    tail.mark()
                yield record
        except BadRow as error:
            raise BadRow(f"{self._path}, {error.where}", error.why) from None
        except BROKEN as error:
            raise broken(str(self._path), error) from None

    def progress(self, application: str, *, is_last: bool, has_ended: bool) -> tuple[AppMetadata, bytes | None]:
        """What is to be in the log, and what is, once every record that was given is in the log. It is kept for ever, however
        a run ends."""
        tail = self._tail
        done = Progress(rows=self._rows) if tail is None else Progress(*tail.marked())
        return AppMetadata(application, PROGRESS, self._name, msgspec.json.encode(done)), self._seen

    def written(self, value: bytes) -> None:
        self._seen = value

    async def ended(self, log: GroupStore, application: str) -> None:
        """At a bad line: what was read of it is in the log already."""

    async def over(self, log: GroupStore, application: str) -> None:
        """At its end: the same."""

    def _text(self, tail: Tail) -> Iterator[FileRecord]:
        if self._kind == "json":
            return text.json_records(tail, tail.lines + 1, self._reading, self._shape)
        if self._seen is None:
            columns = text.csv_columns(tail, self._reading, self._shape, str(self._path))
            return text.csv_records(tail, columns, columns.lines)
        with opened(str(self._path)) as raw:
            columns = text.csv_columns(raw, self._reading, self._shape, str(self._path))
        return text.csv_records(tail, columns, tail.lines)

    def _parquet(self) -> Iterator[FileRecord]:
        name, done = str(self._path), self._rows
        for group in range(parquet.groups(name)):
            for record in parquet.records(name, group, self._reading, self._shape):
                if record.line > done:
                    yield record


async def begin(log: GroupStore, application: str, path: Path, reading: Reading, shape: Shape) -> Begun:
    """Open a file and find what was read of it. Raises OSError, BadFile."""
    with path.open("rb") as file:
        kind = _kind(path, file.read(4))
        if kind != "json":
            check(str(path), reading, shape)
        first = _first(path, kind)
    for number in count():
        name = f"{reading.topic}:{first}.{number}"
        seen = await log.metadata(application, PROGRESS, name)
        if kind == "parquet":
            return Begun(path, reading, shape, kind, name, seen, None)
        tail = Tail(opened(str(path)))
        if seen is None:
            return Begun(path, reading, shape, kind, name, seen, tail)
        done = msgspec.json.decode(seen, type=Progress)
        try:
            if tail.skip(done.bytes, done.lines) and tail.digest() == done.digest:
                return Begun(path, reading, shape, kind, name, seen, tail)
        except BROKEN as error:
            raise broken(str(path), error) from None
        tail.close()
    raise AssertionError("names have no end")


def _kind(path: Path, head: bytes) -> str:
    """As the name ends; JSON lines where it says nothing, but not what is no text. Raises BadFile."""
    try:
        return kind_of(path.name)
    except BadFile as error:
        found = next((what for magic, what in NO_TEXT.items() if head.startswith(magic)), "")
        if found:
            raise BadFile(f"{path} is no text: {found}; {str(error).partition(': ')[2]}") from None
        return "json"


def _first(path: Path, kind: str) -> str:
    """What files that may be the same have in common: the first line, of CSV two; all of a file that has no lines."""
    found = hashlib.blake2b(digest_size=8)
    try:
        with path.open("rb") if kind == "parquet" else opened(str(path)) as file:
            if kind == "parquet":
                while data := file.read(CHUNK):
                    found.update(data)
            else:
                for _ in range(2 if kind == "csv" else 1):
                    found.update(file.readline().rstrip(b"\r\n"))
    except BROKEN as error:
        raise broken(str(path), error) from None
    return found.hexdigest()
