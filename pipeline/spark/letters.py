"""Dead letters on Spark: where their records lie.

One rule: a letter names a place where its record is found, or none. What Spark reads as history, and what its tasks send on to each
other, lies at no offset of the log; and what instances have sent on lies at another offset with each run, so an audit compares letters
without it. In the flow: `stage` writes letters, `comparing` compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.app import App
from pipeline.definitions.topology import Subtopology
from pipeline.records import Headers, OutputRecord
from pipeline.spark.numbered import has_place
from pipeline.spark.rows import packed, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC, OFFSET = "error-topic", "error-offset"
OF_LAST = (TOPIC, OFFSET, "error-partition")  # of a pair's letter
OF_PAIRS = ("error-left", "error-right")  # places of a join's records, as orders-0@5


def letters_of(app: App, sub: Subtopology) -> set[str]:
    """The topics that the dead letters of a subtopology go to."""
    choices = [choice for name in sub.processors for choice in app.error_policy(app.processors[name]).choices()]
    return {choice.topic for choice in choices if not isinstance(choice, str)}


def without_place(sent: Sequence[OutputRecord]) -> list[OutputRecord]:
    """Records for such a topic; no letter names an offset that is none of the log."""
    return [
        OutputRecord(one.key, one.value, one.timestamp_ms, _without(one.headers, ()))
        if _is_letter(one.headers)
        else one
        for one in sent
    ]


def _is_letter(headers: Headers) -> bool:
    return any(name == TOPIC for name, _ in headers)


def _without(headers: Headers, sent_on: Collection[str]) -> Headers:
    """Without places in these topics, and those that are none. A letter of a letter has the headers of both: the last are its own."""
    at = max((number for number, (name, _) in enumerate(headers) if name == TOPIC), default=len(headers))
    return (*headers[:at], *_placed(headers[at:], sent_on))


def _placed(headers: Headers, sent_on: Collection[str]) -> Iterator[tuple[str, bytes]]:
    topic = headers[0][1].decode(errors="replace") if headers else ""
    for name, value in headers:
        if name == OFFSET and _is_nowhere(topic, value.decode(errors="replace"), sent_on):
            continue
        if name in OF_PAIRS:
            place, _, offset = value.decode(errors="replace").rpartition("@")
            if _is_nowhere(place.rpartition("-")[0], offset, sent_on):
                value = place.encode()
        yield name, value


def _is_nowhere(topic: str, offset: str, sent_on: Collection[str]) -> bool:
    return topic in sent_on or not has_place(_number(offset))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


# ---------------------------------------------------------------- compared


def compared(records: DataFrame, letters: Collection[str], sent_on: Collection[str]) -> DataFrame:
    """Records (`subject`: their topic) with the letters among them as an audit compares them: those of the log, and those of Spark."""
    from pyspark.sql import functions as F

    if not letters or not sent_on:
        return records
    chosen = F.col("subject").isin(sorted(letters))
    found = records.where(chosen).mapInArrow(partial(_cells, sorted(sent_on)), records.schema)
    return records.where(~chosen).unionByName(found)


def _cells(sent_on: Collection[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("value", "headers")]
        found = [_compared(value, unpacked(headers), sent_on) for value, headers in zip(*columns, strict=True)]
        for name, cells in zip(("value", "headers"), zip(*found, strict=True), strict=False):
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, batch.schema.field(at), pa.array(cells, batch.schema.field(at).type))
        yield batch


def _compared(value: bytes | None, headers: Headers, sent_on: Collection[str]) -> tuple[bytes | None, bytes | None]:
    """The value and the headers of a record; of a letter of a pair without what is of the record that came last, which is the other one
    with another run."""
    placed = _without(headers, sent_on)
    if not {name for name, _ in placed}.issuperset(OF_PAIRS):
        return value, packed(placed)
    at = max(number for number, (name, _) in enumerate(placed) if name == TOPIC)
    return None, packed(tuple(one for one in placed[at:] if one[0] not in OF_LAST))
