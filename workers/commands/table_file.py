"""Where the pairs of a table go: lines on standard output, or a file of JSON lines or Parquet.

One rule: a file is there whole or not at all: part_file.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.time.stored_form import StoredRow
from pipeline.values.json_values import shown
from workers.commands.part_file import PartFile

ENDINGS = (".jsonl", ".ndjson", ".parquet")
ROWS = 10_000  # of a row group


class Target(Protocol):
    """Takes pairs; the end of a `with` block keeps or discards what was written."""

    def add(self, row: StoredRow) -> None: ...
    def __enter__(self) -> Target: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def target(out: str | None, key_codec: str, value_codec: str, *, has_bounds: bool = False) -> Target:
    """What `--out` names; `has_bounds`: rows have the bounds of a window. Raises WrongUse."""
    if out is None:
        return Lines(key_codec, value_codec, has_bounds=has_bounds)
    path = Path(out)
    if path.is_symlink():  # what it names is written, and not the link replaced
        path = path.resolve()
    if path.is_dir():
        raise WrongUse(f"--out {out}: that is a folder; name a file")
    if path.suffix not in ENDINGS:
        raise WrongUse(f"--out {out}: the name says how it is written; let it end with {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise WrongUse(f"--out {out}: there is no folder {path.parent}; make it first")
    if path.suffix == ".parquet":
        return Parquet(path, key_codec, value_codec, has_bounds=has_bounds)
    return Lines(key_codec, value_codec, path, has_bounds=has_bounds)


class Lines:
    """A JSON object a line, as `produce` reads it."""

    def __init__(self, key_codec: str, value_codec: str, path: Path | None = None, *, has_bounds: bool) -> None:
        self._codecs = key_codec, value_codec
        self._has_bounds = has_bounds
        self._path = path
        self._part = None if path is None else _part(path)
        self._file = sys.stdout if self._part is None else self._part.path.open("w")

    def add(self, row: StoredRow) -> None:
        """Raises OrchestratorError where the file does not take it."""
        bounds = {"start_ms": row.start_ms, "end_ms": row.end_ms} if self._has_bounds else {}
        found = {"key": shown(self._codecs[0], row.key), **bounds, "value": shown(self._codecs[1], row.value)}
        try:
            self._file.write(json.dumps(found) + "\n")
        except OSError as error:
            if self._path is None:  # what standard output does not take is everybody's
                raise
            raise _refused(self._path, error) from error

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None or self._part is None:
            self._file.flush()
            return
        try:
            self._file.close()
        except OSError as failed:
            _end(self._part, self._path, keep=False)
            if error is None:
                raise _refused(self._path, failed) from failed
        else:
            _end(self._part, self._path, keep=error is None)


class Parquet:
    """The columns `key` and `value`: text, whole numbers and numbers as such, bytes as they are, all else as JSON text; of
    windows also `start_ms` and `end_ms`."""

    def __init__(self, path: Path, key_codec: str, value_codec: str, *, has_bounds: bool) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise WrongUse(
                "Parquet is written by pyarrow; install it with `pip install pyarrow`, or write .jsonl"
            ) from None
        self._part = _part(path)
        kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bytes": pa.binary()}
        kinds["custom"] = pa.binary()
        self._pa = pa
        self._bounds = ("start_ms", "end_ms") if has_bounds else ()
        self._schema = pa.schema(
            [
                ("key", kinds.get(key_codec, pa.string())),
                ("value", kinds.get(value_codec, pa.string())),
                *((name, pa.int64()) for name in self._bounds),
            ]
        )
        self._codecs = key_codec, value_codec
        self._path = path
        try:
            self._writer = pq.ParquetWriter(self._part.path, self._schema)
        except OSError as error:
            _end(self._part, path, keep=False)
            raise _refused(path, error) from error
        self._rows: list[list[Any]] = [[] for _ in self._schema]

    def add(self, row: StoredRow) -> None:
        """Raises OrchestratorError where the file does not take it."""
        found = [_cell(codec, data or b"") for codec, data in zip(self._codecs, (row.key, row.value), strict=True)]
        found += [getattr(row, name) for name in self._bounds]
        for cells, cell in zip(self._rows, found, strict=True):
            cells.append(cell)
        if len(self._rows[0]) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        try:
            columns = [self._pa.array(cells, field.type) for cells, field in zip(self._rows, self._schema, strict=True)]
        except (self._pa.ArrowException, TypeError) as error:
            raise OrchestratorError(f"{self._path} cannot be written: {error}; write .jsonl") from None
        try:
            self._writer.write_table(self._pa.Table.from_arrays(columns, schema=self._schema))
        except OSError as error:
            raise _refused(self._path, error) from error
        for cells in self._rows:
            cells.clear()

    def __enter__(self) -> Parquet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_whole = False
        try:
            if error is None and self._rows[0]:
                self._flush()
            self._writer.close()
            is_whole = error is None
        except OSError as failed:
            raise _refused(self._path, failed) from failed
        finally:
            with contextlib.suppress(OSError):  # the first error is the one that says why
                self._writer.close()
            _end(self._part, self._path, keep=is_whole)


def _cell(codec: str, data: bytes) -> Any:
    if codec in ("bytes", "custom"):
        return data
    return shown(codec, data) if codec in ("str", "int", "float") else data.decode(errors="replace")


def _part(path: Path) -> PartFile:
    try:
        return PartFile(path)
    except OSError as error:
        raise WrongUse(f"--out {path} cannot be written ({error.strerror}); name another file") from None


def _end(part: PartFile, path: Path, *, keep: bool) -> None:
    try:
        part.end(keep=keep)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> OrchestratorError:
    return OrchestratorError(
        f"--out {path} cannot be written ({error.strerror or error}); name another file, or make room"
    )
