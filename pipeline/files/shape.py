"""Which columns of a file make a record, and what stands in one: a record, or why not.

One rule: without options a row has our own names (key, value, timestamp_ms, headers, offset); `--key`, `--value`,
`--timestamp`, `--headers` and `--partition` name columns of a flat file instead, and without `--value` the value is built from the columns by the
topic's type. In the flow: options -> Shape -> `json_lines` and `columns` -> FileRecord.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import DefinitionError, PipelineError
from pipeline.records import Headers
from pipeline.values.codecs import Codec

UNITS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
ORDER = "__order_ms"  # a column of ours alone, of what was read from a log: the time by which a task takes the record
TIME_MAX_MS = (1 << 63) - 1


class BadRow(PipelineError):
    """A row that is no record of its topic. `where` is its line or row, `why` what is wrong with it."""

    exit_code = 1

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class BadFile(PipelineError):
    """A file that is not there, cannot be read, or has not the columns asked for."""

    exit_code = 2


class NotThis(ValueError):
    """Why a cell or a row is not what its topic wants; who knows the line makes a BadRow of it."""


class NoText(bytes):
    """A cell of a column of text that is not UTF-8: a key or a value of bytes as it stands there, and no field of a value, where bytes
    would be written as base64."""


class FileRecord(NamedTuple):
    """A record as its file has it. `line` counts from 1 within what is read (a line of text, a row of Parquet). `order_ms`: see ORDER;
    None where it is the time of the record."""

    line: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Headers = ()
    offset: int | None = None
    partition: int | None = None
    order_ms: int | None = None


# Takes a row that is no record, with what stands there: a line, cells, or values by column. Without one, reading ends there.
OnBad = Callable[[BadRow, Any], None]


class Reading(NamedTuple):
    """The types that rows are read as, how many partitions the topic has, and whether a row without a time is no record."""

    topic: str
    key: Codec[Any]
    value: Codec[Any]
    partitions: int = 1
    is_history: bool = False

    def timed(self, at_ms: int | None) -> int | None:
        """The time of a row. Raises NotThis where there is none and history needs one."""
        if at_ms is None and self.is_history:
            raise NotThis(
                f"no timestamp_ms; history of '{self.topic}' needs the time of every record (--timestamp names another column)"
            )
        return at_ms


class Shape(msgspec.Struct, frozen=True):
    """Names of columns; "" for our own. `unit` is that of whole numbers in the timestamp's column."""

    key: str = ""
    value: str = ""
    timestamp: str = ""
    unit: str = "ms"
    headers: str = ""
    partition: str = ""

    @property
    def flat(self) -> bool:
        """Whether rows are those of a flat file, and not records by our own names."""
        return bool(self.key or self.value or self.timestamp or self.headers or self.partition)


def shape_of(
    key: str | None,
    value: str | None,
    timestamp: str | None,
    headers: str | None = None,
    partition: str | None = None,
) -> Shape:
    """From the options. `--timestamp COLUMN` or `COLUMN:s`, with the unit of whole numbers. Raises DefinitionError."""
    column, unit = timestamp or "", "ms"
    head, colon, tail = column.rpartition(":")
    if colon and tail in UNITS:
        column, unit = head, tail
    options = {"key": key, "value": value, "timestamp": timestamp, "headers": headers, "partition": partition}
    for name, given in options.items():
        named = column if name == "timestamp" else given
        if given is not None and not (named or "").strip():
            raise DefinitionError(f"--{name} '{given}': write the name of a column")
    return Shape(key or "", value or "", column, unit, headers or "", partition or "")


def whole_ms(number: int, unit: str) -> int:
    """A whole number of the unit as milliseconds since 1970, cut off. Raises NotThis."""
    times, parts = UNITS[unit]
    found = number * times // parts
    if number < 0 or found > TIME_MAX_MS:
        raise NotThis(f"{number} is no time: whole {unit} since 1970 from 0 on are")
    return found
