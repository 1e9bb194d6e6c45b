"""Files cut into parts, and a part read into records.

One rule: what a part holds depends on the file and its cut alone, and parts in their order give the rows of the file in
theirs. JSON lines that are not compressed are cut at about PART_BYTES, Parquet into its row groups; all else is one part.
"""

from __future__ import annotations

import glob
import lzma
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from zlib import error as ZlibError

import msgspec

from pipeline.files import parquet, text
from pipeline.files.columns import Columns
from pipeline.files.shape import BadFile, BadRow, FileRecord, OnBad, Reading, Shape
from pipeline.files.text import COMPRESSED, opened

PART_BYTES = 32 << 20
BROKEN = (EOFError, OSError, lzma.LZMAError, ZlibError)  # what a damaged file raises: see `broken`
MARKS = (
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
    "_started_*",
    "_committed_*",
    "*.crc",
)  # beside the files of a folder
TABLES = {"Delta": ["_delta_log"], "Hudi": [".hoodie"], "Iceberg": ["metadata/*.metadata.json"]}
FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}


class Part(msgspec.Struct, frozen=True):
    """Bytes (JSON lines) or row groups (Parquet) from `start` until before `end`; -1: to the end."""

    file: str
    kind: str
    start: int = 0
    end: int = -1


def files(patterns: Sequence[str]) -> list[str]:
    """The files that patterns name, in order; a name that is a file or a folder is that one, whatever letters it has, and a folder
    is all files below it.

    Raises BadFile for a pattern that names none, for a format that is not read, and for a folder that is more than its files.
    """
    found: list[str] = []
    for pattern in patterns:
        here = Path(pattern)
        named = [pattern] if here.exists() else sorted(_named(pattern))
        is_deep = "**" in Path(pattern).parts and not here.exists()  # it names what is in its folders by itself
        matched = [name for name in named if Path(name).is_file()]
        folders = [] if is_deep else [Path(name) for name in named if Path(name).is_dir()]
        matched += [name for folder in folders for name in _files_of(folder)]
        if not matched:
            raise BadFile(f"no file is called {pattern}; name files, or a pattern of files")
        found += matched
    for name in found:
        kind_of(name)
    return [str(Path(name).absolute()) for name in dict.fromkeys(found)]


def _files_of(folder: Path) -> list[str]:
    """What lies below a folder, but for the marks of those that wrote it. Raises BadFile."""
    table = next((name for name, marks in TABLES.items() if any(any(folder.glob(mark)) for mark in marks)), None)
    if table is not None:
        raise BadFile(f"{folder} is a table of {table}, which says which of its files count; read it with --from")
    below = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in below:
        column = next((part for part in path.parent.relative_to(folder).parts if "=" in part), None)
        if column is not None:
            raise BadFile(
                f"{folder} has a column in the names of its folders ({column}); read it as Spark does, as in --from "
                f"TOPIC=parquet:{folder}, or without that column as {folder}/**/*"
            )
    return [str(path) for path in below if not any(fnmatch(path.name, mark) for mark in MARKS)]


def _named(pattern: str) -> list[str]:
    """Names that begin with a dot are found where the pattern begins with one, as in a shell."""
    return glob.glob(pattern, recursive=True)  # noqa: PTH207 - a pattern may be absolute


def kind_of(name: str) -> str:
    """ "json", "csv" or "parquet", by the name. Raises BadFile."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    while suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise BadFile(
            f"{name}: files are read that end with {', '.join(sorted(FORMATS))}, also with {', '.join(COMPRESSED)}"
        )
    return kind


def parts(name: str) -> list[Part]:
    """Raises BadFile for a file that cannot be opened."""
    kind = kind_of(name)
    if kind == "parquet":
        return [Part(name, kind, at, at + 1) for at in range(parquet.groups(name))]
    if kind == "json" and not name.lower().endswith(COMPRESSED):
        try:
            size = Path(name).stat().st_size
        except OSError as error:
            raise BadFile(f"cannot read {name}: {error.strerror}") from None
        return [Part(name, kind, at, min(at + PART_BYTES, size)) for at in range(0, size, PART_BYTES)]
    return [Part(name, kind)]


def broken(name: str, error: Exception) -> BadFile:
    """For one of BROKEN."""
    if isinstance(error, OSError) and error.strerror:
        return BadFile(f"cannot read {name}: {error.strerror}")
    return BadFile(f"cannot read {name}: {error}: it is damaged, or is not all there")


def check(name: str, reading: Reading, shape: Shape) -> None:
    """Whether the columns of a file do, before anything is read. Raises BadFile."""
    kind = kind_of(name)
    if kind == "parquet":
        Columns(reading, shape, parquet.names(name), text=False, file=name)
    elif kind == "csv":
        try:
            with opened(name) as raw:
                text.csv_columns(raw, reading, shape, name)
        except BROKEN as error:
            raise broken(name, error) from None


def read(part: Part, reading: Reading, shape: Shape, bad: OnBad | None = None) -> Iterator[FileRecord]:
    """The records of a part in their order; blank lines are none. Raises BadRow, BadFile, both naming the file; with `bad`
    rows that are no records go there, and reading goes on after them where the next one can be found."""
    try:
        if part.kind == "parquet":
            yield from parquet.records(part.file, part.start, reading, shape, bad)
        elif part.kind == "json":
            yield from text.json_part(part.file, part.start, part.end, reading, shape, bad)
        else:
            with opened(part.file) as raw:
                columns = text.csv_columns(raw, reading, shape, part.file)
                yield from text.csv_records(raw, columns, columns.lines, bad)
    except BadRow as error:
        raise BadRow(f"{part.file}, {error.where}", error.why) from None
    except BROKEN as error:
        raise broken(part.file, error) from None
