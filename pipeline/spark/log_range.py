"""A topic of another log as history, or a part of it: `URL/TOPIC`, `URL/TOPIC@120,98` (up to these positions, a number for each
partition) or `URL/TOPIC@40-120,98` (from position 40 on).

One rule: what is read is named by positions before the first record is read, so that the same command reads the same again, whatever
is written to the topic meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from pipeline.files.shape import ORDER
from pipeline.spark.history import BadHistory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.spark.log_source import Slice

LOG = "log"
_POSITIONS = re.compile(r"(\d+-)?\d+(,(\d+-)?\d+)*")


class Range(NamedTuple):
    """`bounds`: from where up to where, by partition; () for all that there is."""

    url: str
    topic: str
    bounds: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        shown = ",".join(f"{start}-{end}" if start else str(end) for start, end in self.bounds)
        return f"{LOG}:{self.url}/{self.topic}{'@' if shown else ''}{shown}"


def parsed(text: str) -> Range:
    """What stands behind `log:`. Raises BadHistory."""
    url, _, name = text.rpartition("/")
    topic, at, positions = name.partition("@")
    if not url or not topic:
        raise BadHistory(f"log:{text} names no topic; write log:URL/TOPIC, for example log:kafka://host:9092/payments")
    if not at:
        return Range(url, topic, ())
    if not _POSITIONS.fullmatch(positions):
        raise BadHistory(f"log:{text}: write a position for each partition, as in {topic}@120,98 or {topic}@40-120,98")
    bounds = [one.rpartition("-") for one in positions.split(",")]
    return Range(url, topic, tuple((int(start or 0), int(end)) for start, _, end in bounds))


def fixed(text: str) -> Range:
    """With the positions that it has now where none are named. Raises BadHistory for some that are not there. Not to be called on an
    event loop."""
    from pipeline.spark.log_source import slices

    found = parsed(text)
    there = asyncio.run(slices(found.url, [found.topic], None))
    if not found.bounds:
        return found._replace(bounds=tuple((one.start, one.end) for one in there))
    if len(found.bounds) != len(there):
        raise BadHistory(f"{found}: the topic has {len(there)} partitions, and {len(found.bounds)} positions are named")
    for one, (start, end) in zip(there, found.bounds, strict=True):
        _check(found, one, start, end)
    return found


def _check(found: Range, there: Slice, start: int, end: int) -> None:
    where = f"{there.topic}-{there.number}"
    if start > end:
        raise BadHistory(f"{found}: {start} is behind {end}")
    if end > there.end:
        raise BadHistory(f"{found}: {where} ends at {there.end}")
    if start < there.start and start < end:
        raise BadHistory(
            f"{found}: what {where} had before {there.start} is gone; name it {there.start}-{end} to do without"
        )


def frame(session: SparkSession, text: str) -> DataFrame:
    """Its records, with the time by which a task takes them: with files beside them they are in one order. Raises BadHistory,
    NoSpaceLeft."""
    from pipeline.spark.log_source import log_frame
    from pipeline.spark.source import ship_ours

    found = fixed(text)
    ship_ours(session)  # executors read it with our code, and a look at how much it is sends no app
    since = {f"{found.topic}-{number}": start for number, (start, _) in enumerate(found.bounds)}
    until = {f"{found.topic}-{number}": end for number, (_, end) in enumerate(found.bounds)}
    rows = log_frame(session, found.url, [found.topic], until, since)
    # Its partitions are merged as a task merges them; offsets are places within one of them, and no file has those.
    return rows.withColumnRenamed("order_ms", ORDER).drop("offset", "topic", "partition")
