"""Differences as a person reads them, as JSON, and as a Parquet file: keys and values by the app's own types.

One rule: what is shown is what the description in the log knows how to read; all else is shown as its bytes, never left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.spark.differences import DIFFERENCE
from pipeline.spark.one_file import one_file
from pipeline.spark.rows import FLUSH_ROWS, unpacked
from pipeline.time.stored_form import StoredForm
from pipeline.values.json_values import shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = pa.schema(
    [
        *((name, pa.string()) for name in ("check", "kind", "place", "key", "expected", "found", "headers")),
        *(("timestamp_ms", pa.int64()), ("times", pa.int64())),
        *((name, pa.binary()) for name in ("key_bytes", "expected_bytes", "found_bytes")),
    ]
)


class Subject(NamedTuple):
    """What a check looks at: a table of the description or a topic, and how a place of it is called, by number of the copy."""

    is_table: bool
    name: str
    places: Mapping[int, str] = {}


class Reading:
    """Bytes as values, by the description of the app."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._tables = described["tables"]
        self._topics = described["topics"]

    def shown(self, subject: Subject, row: Any) -> dict[str, Any]:
        """A difference as plain data; `key`, `expected` and `found` are values."""
        partition = row["partition"]
        found: dict[str, Any] = {"kind": row["kind"]}
        if row["copy"] in subject.places:
            found["store"] = subject.places[row["copy"]]
        elif partition is not None:
            found["partition"] = partition
        found |= self._of_table(subject, row) if subject.is_table else self._of_topic(subject, row)
        if row["times"] != 1:
            found["times"] = row["times"]
        return found

    def _of_table(self, subject: Subject, row: Any) -> dict[str, Any]:
        facts = self._tables[subject.name]
        form = StoredForm(facts)
        key, sides = _bytes(row["key"]) or b"", {name: _bytes(row[name]) for name in ("expected", "found")}
        rows = (
            {name: form.row(key, side) for name, side in sides.items() if side is not None} if form.is_readable else {}
        )
        known = next((one for one in rows.values() if one is not None), None)
        if known is None:  # what the table keeps for itself
            return {"entry": shown("custom", key), **{name: shown("custom", side) for name, side in sides.items()}}
        found: dict[str, Any] = {"key": shown(facts["key_codec"], known.key)}
        if form.is_windowed:
            found |= {"start_ms": known.start_ms, "end_ms": known.end_ms}
        skip = 8 if facts.get("expire_ms") is not None else 0  # the time of the write stands before the value
        for name in ("expected", "found"):
            side = rows.get(name)
            found[name] = None if side is None or side.value is None else shown(form.value_codec, side.value[skip:])
        return found

    def _of_topic(self, subject: Subject, row: Any) -> dict[str, Any]:
        codecs = self._topics.get(subject.name, {"key_codec": "custom", "value_codec": "custom"})
        found = {
            "key": shown(codecs["key_codec"], _bytes(row["key"])),
            "expected": shown(codecs["value_codec"], _bytes(row["expected"])),
            "found": shown(codecs["value_codec"], _bytes(row["found"])),
        }
        if row["timestamp_ms"] is not None:
            found["timestamp_ms"] = row["timestamp_ms"]
        headers = unpacked(_bytes(row["headers"]))
        return {**found, "headers": [[name, shown("bytes", data)] for name, data in headers]} if headers else found


def rows_of(session: SparkSession, subject: Subject, path: str) -> DataFrame:
    """The differences of a check."""
    from pyspark.sql import functions as F

    return session.read.schema(DIFFERENCE).parquet(one_file(path)).where(F.col("subject") == subject.name)


def first(session: SparkSession, subject: Subject, path: str, limit: int) -> list[Any]:
    """The first differences of a check, in the order of their places and keys."""
    ordered = rows_of(session, subject, path).orderBy("partition", "copy", "key", "kind")
    found: list[Any] = ordered.limit(limit).collect()
    return found


def line(one: Mapping[str, Any]) -> str:
    """A difference as a line for people."""
    place = one.get("store") or (f"partition {one['partition']}" if "partition" in one else "")
    what = f"key {json.dumps(one['key'])}" if "key" in one else f"entry {json.dumps(one['entry'])}"
    if one.get("start_ms") is not None or one.get("end_ms") is not None:
        what += f" in the window {one.get('start_ms')} to {one.get('end_ms')}"
    more = f" at {one['timestamp_ms']}" if "timestamp_ms" in one else ""
    more += f" {json.dumps(one['headers'])}" if "headers" in one else ""
    often = f", {one['times']} times" if "times" in one else ""
    kind = {"lost": "is not in the log", "doubled": "is there once too often", "order": "is out of order"}
    if one["kind"] in ("lost", "doubled"):
        value = one["expected"] if one["kind"] == "lost" else one["found"]
        return f"  {place}: {what}: {json.dumps(value)}{more} {kind[one['kind']]}{often}"
    expected = "nothing" if one["kind"] == "extra" else json.dumps(one["expected"])
    found = "nothing" if one["kind"] == "missing" else json.dumps(one["found"])
    return f"  {place}{': ' if place else ''}{what}{more}: expected {expected}, found {found}" + (
        f"; it {kind['order']}" if one["kind"] == "order" else ""
    )


def write(session: SparkSession, path: Path, found: list[tuple[str, Subject, str]], reading: Reading) -> int:
    """All differences of all checks (its text, what it looks at, the file of its rows) in one Parquet file; returns how many."""
    count = 0
    draft = path.with_name(f".{path.name}.part")
    with pq.ParquetWriter(draft, FILE) as file:
        for check, subject, rows_path in found:
            if not rows_path:
                continue
            rows = rows_of(session, subject, rows_path).toLocalIterator()
            while part := list(islice(rows, FLUSH_ROWS)):
                file.write_table(pa.Table.from_pylist(list(_cells(check, subject, part, reading)), schema=FILE))
                count += len(part)
    draft.replace(path)
    return count


def _cells(check: str, subject: Subject, rows: list[Any], reading: Reading) -> Iterator[dict[str, Any]]:
    for row in rows:
        one = reading.shown(subject, row)
        key = one.get("key", one.get("entry"))
        window = {name: one[name] for name in ("start_ms", "end_ms") if one.get(name) is not None}
        yield {
            "check": check,
            "kind": one["kind"],
            "place": one.get("store") or ("" if "partition" not in one else str(one["partition"])),
            "key": json.dumps({"key": key, **window} if window else key),
            "expected": json.dumps(one["expected"]),
            "found": json.dumps(one["found"]),
            "headers": json.dumps(one.get("headers", [])),
            "timestamp_ms": row["timestamp_ms"],
            "times": row["times"],
            "key_bytes": _bytes(row["key"]),
            "expected_bytes": _bytes(row["expected"]),
            "found_bytes": _bytes(row["found"]),
        }


def _bytes(cell: Any) -> bytes | None:
    return None if cell is None else bytes(cell)
