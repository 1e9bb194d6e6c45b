"""Text files: JSON lines and CSV, plain or compressed.

One rule: a line is read once, in order, and nothing is asked of the lines after it; so a part can be read anywhere, and
reading can stop after any record and go on there (`Tail`).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import lzma
import re
from bz2 import BZ2File
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple, cast

import msgspec

from pipeline.files.columns import Columns
from pipeline.files.json_lines import NOT_UTF8, no_object, read_line
from pipeline.files.json_rows import JsonColumns
from pipeline.files.names_once import once
from pipeline.files.shape import BadFile, BadRow, FileRecord, NotThis, OnBad, Reading, Shape

COMPRESSED = (".gz", ".bz2", ".xz")
CHUNK = 1 << 20
CELL_MAX = 64 << 20
DELIMITERS = (
    ",",
    ";",
    "\t",
)  # the first of them that the header has: spreadsheets write others than commas in some countries
BOM = b"\xef\xbb\xbf"  # Excel and PowerShell begin their UTF-8 with it
LONE_CR = "a line ends with CR alone, as on old Macs; save it with line ends of Unix (LF) or Windows (CR LF)"
_QUOTED = re.compile(rb'"[^"]*"')


def opened(name: str) -> IO[bytes]:
    """The bytes of a file, not compressed. Raises BadFile."""
    try:
        if name.lower().endswith(".gz"):
            return cast(IO[bytes], gzip.open(name))
        if name.lower().endswith(".bz2"):
            return cast(IO[bytes], BZ2File(name))
        if name.lower().endswith(".xz"):
            return cast(IO[bytes], lzma.open(name))
        return Path(name).open("rb")
    except OSError as error:
        raise BadFile(f"cannot read {name}: {error.strerror}") from None


class Tail:
    """The lines of a file that follow a position, with the digest of all that was read up to the last mark.

    The reader marks what it has understood: lines of a row that is not one are not counted as read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.blake2b(digest_size=16)
        self._read: list[bytes] = []  # since the last call of `marked`
        self._marked = 0  # how many of them
        self.bytes = 0
        self.lines = 0

    def skip(self, count: int, lines: int) -> bool:
        """Read `count` bytes, which have so many lines; False where the file is shorter."""
        left = count
        while left:
            data = self._file.read(min(left, CHUNK))
            if not data:
                return False
            self._hash.update(data)
            left -= len(data)
        self.bytes, self.lines = count, lines
        return True

    def go_on(self, read: hashlib.blake2b, count: int, lines: int) -> None:
        """Behind `count` bytes in so many lines, whose digest is `read`, which the caller has read."""
        self._hash, self.bytes, self.lines = read, count, lines

    def mark(self) -> None:
        """All that was read until now is understood."""
        self._marked = len(self._read)

    def marked(self) -> tuple[int, int, str]:
        """Bytes, lines and digest of what is marked."""
        data = b"".join(self._read[: self._marked])
        self._hash.update(data)
        self.bytes += len(data)
        self.lines += self._marked
        self._read = self._read[self._marked :]
        self._marked = 0
        return self.bytes, self.lines, self.digest()

    def digest(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self._read.append(line)
            yield line


# ---------------------------------------------------------------- JSON lines


def json_records(
    lines: Iterable[bytes], first: int, reading: Reading, shape: Shape, bad: OnBad | None = None
) -> Iterator[FileRecord]:
    """A record a line that is not blank. `first`: the number of the first line. Raises BadRow."""
    for number, line in enumerate(lines, first):
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.strip():
            continue
        try:
            record = read_line(reading, number, line) if not shape.flat else _flat(reading, shape, number, line)
        except BadRow as error:
            if bad is None:
                raise
            bad(error, line.decode(errors="replace").rstrip("\r\n"))
        else:
            yield record


def json_part(
    name: str, start: int, end: int, reading: Reading, shape: Shape, bad: OnBad | None = None
) -> Iterator[FileRecord]:
    """Of the lines that begin from byte `start` until before `end` (-1: all). Raises BadRow."""

    def in_file(error: BadRow) -> BadRow:
        return BadRow(f"line {int(error.where.split()[1]) + _lines_before(name, start)}", error.why)

    found = None if bad is None else lambda error, line: bad(in_file(error), line)
    with opened(name) as file:
        try:
            yield from json_records(_lines(file, start, end), 1, reading, shape, found)
        except BadRow as error:
            raise in_file(error) from None


def _flat(reading: Reading, shape: Shape, number: int, line: bytes) -> FileRecord:
    where = f"line {number}"
    try:
        line.decode()
        row = _rows_of_json.decode(line)
        once(line, row)
    except UnicodeDecodeError:
        raise BadRow(where, NOT_UTF8) from None
    except NotThis as error:
        raise BadRow(where, str(error)) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRow(where, _no_row(line, error)) from None
    try:
        columns = _json_columns(reading, shape, tuple(row))
    except BadFile as error:
        raise BadRow(where, str(error)) from None
    return columns.raw_record(number, row)


_rows_of_json = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json_columns = lru_cache(maxsize=256)(JsonColumns)


def _no_row(line: bytes, error: Exception) -> str:
    """Why a line is none."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError) as broken:
        return str(broken)
    return str(error) if isinstance(found, dict) else no_object(found)


def _lines(file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    """A line belongs to the part in which it begins."""
    at = start
    if start:
        file.seek(start - 1)
        at += len(file.readline()) - 1
    while end < 0 or at < end:
        line = file.readline()
        if not line:
            return
        yield line
        at += len(line)


def _lines_before(name: str, start: int) -> int:
    """How many lines begin before the byte; counted only where a line has to be named."""
    if not start:
        return 0
    with Path(name).open("rb") as file:
        return sum(1 for _ in _lines(file, 0, start))


# ---------------------------------------------------------------- CSV


def csv_columns(lines: Iterable[bytes], reading: Reading, shape: Shape, name: str) -> CsvColumns:
    """From the first line on: reads the header. Raises BadFile."""
    rest = _without_bom(iter(lines))
    head = next(rest, b"")
    between = _QUOTED.sub(b"", head)
    delimiter = next((one for one in DELIMITERS if one.encode() in between), DELIMITERS[0])
    try:
        first = next(_rows(chain([head], rest), 1, delimiter), None)
        if first is not None and first.no_utf8:
            raise BadRow(f"line {first.no_utf8}", NOT_UTF8)
    except BadRow as error:
        raise BadFile(f"{name}, {error}") from None
    if first is None:
        raise BadFile(f"{name} is empty; CSV begins with a line of names")
    return CsvColumns(first.cells, Columns(reading, shape, first.cells, text=True, file=name), first.last, delimiter)


class CsvColumns:
    """The header of a file, and what it makes of a row. `lines`: how many the header has; `delimiter`: between its cells."""

    def __init__(self, names: list[str], columns: Columns, lines: int, delimiter: str) -> None:
        self._names = names
        self._columns = columns
        self.lines = lines
        self.delimiter = delimiter

    def record(self, line: int, cells: list[str]) -> FileRecord:
        """The record of a line, with as many cells as the first line has names. Raises BadRow."""
        if len(cells) != len(self._names):
            raise BadRow(f"line {line}", f"{len(cells)} cells, and {len(self._names)} names in the first line")
        return self._columns.record(f"line {line}", line, dict(zip(self._names, cells, strict=True)))


def csv_records(
    lines: Iterable[bytes], columns: CsvColumns, before: int, bad: OnBad | None = None
) -> Iterator[FileRecord]:
    """A record a row; `before`: how many lines came before. RFC 4180: quoted cells may have commas, quotes and line
    ends, as pandas, Excel and DuckDB write them. Raises BadRow naming the line in which the row begins."""
    for row in _rows(lines, before + 1, columns.delimiter):
        try:
            if row.no_utf8:
                raise BadRow(f"line {row.no_utf8}", NOT_UTF8)
            record = columns.record(row.first, row.cells)
        except BadRow as error:
            if bad is None:
                raise
            bad(error, row.cells)
        else:
            yield record


class _Row(NamedTuple):
    """Cells, and the lines that they stand in; `no_utf8`: the first of these that is none, 0 for none."""

    first: int
    last: int
    cells: list[str]
    no_utf8: int = 0


def _rows(lines: Iterable[bytes], first: int, delimiter: str) -> Iterator[_Row]:
    csv.field_size_limit(CELL_MAX)
    begun = first
    no_utf8: list[int] = []
    reader = csv.reader(_decoded(lines, first, no_utf8), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:
                yield _Row(begun, first + reader.line_num - 1, cells, no_utf8[0] if no_utf8 else 0)
            no_utf8.clear()
            begun = first + reader.line_num
    except csv.Error as error:
        why = LONE_CR if "new-line character" in str(error) else f"no CSV as RFC 4180 has it: {error}"
        raise BadRow(f"line {begun}", why) from None


def _decoded(lines: Iterable[bytes], first: int, no_utf8: list[int]) -> Iterator[str]:
    for number, line in enumerate(lines, first):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            no_utf8.append(number)
            text = line.decode(errors="replace")
        yield text


def _without_bom(lines: Iterator[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        yield line.removeprefix(BOM) if number == 0 else line
