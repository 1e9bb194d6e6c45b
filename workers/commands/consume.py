"""`orchestrator consume APP TOPIC [--follow]`: a topic's records as JSON objects, one a line."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import PLACE
from orchestrator.clocks import monotonic_s
from orchestrator.errors import WrongUse
from pipeline.tables import expiry
from pipeline.time.stored_form import StoredForm
from pipeline.values.json_values import shown
from state.errors import LogBusy, PositionOutOfRange
from state.log.batches import decode
from state.log.protocol import Fetched, Headers, Log, Partition, Reader, StoredRecord, TopicInfo
from workers.fleet.client import described_topics, log_of

ANSWER_S, SETTLED_WITHIN_S = 30.0, 2.0


def run(argv: list[str]) -> int:
    parser = Parser("consume", "Print a topic's records; ends when all that is there is printed.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--follow", action="store_true", help="go on as records arrive, until interrupted")
    parser.add_argument("--json", action="store_true", help="as without it: each line is a JSON object")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    return asyncio.run(_consume(args))


async def _consume(args: Any) -> int:
    topic, follow = args.topic, args.follow
    async with log_of(args) as (application, log, _):
        facts = await described_topics(log, application, args.app)
        described = facts["topics"]
        topics = await log.topics([topic])
        info = topics.get(topic)
        if info is None:
            raise WrongUse(f"'{application}' has no topic '{topic}'; it has {', '.join(sorted(described))}")
        codecs = codecs_of(topic, facts)
        partitions = [Partition(topic, number) for number in range(info.partitions)]
        starts = await log.starts(partitions)
        reader = log.reader()
        for partition in partitions:
            reader.add(partition, starts[partition])
        try:
            ends = {} if follow else {p: e for p, e in (await _ends(log, partitions)).items() if e > starts[p]}
            while follow or ends:
                for part in await _polled(reader, ends, 200 if follow else 0):
                    for record in decode(part.data, part.position) if part.data else []:
                        if is_internal(record, codecs):
                            continue
                        if follow or record.offset < ends.get(part.partition, 0):
                            print(json.dumps(line(part.partition, record, codecs)), flush=follow)
                    if part.next_position >= ends.get(part.partition, 0):
                        ends.pop(part.partition, None)
                        if not follow:
                            reader.drop(part.partition)
                if follow:
                    _add_new(reader, partitions, (await log.topics([topic])).get(topic))
        finally:
            await reader.close()
    return 0


async def _polled(reader: Reader, ends: dict[Partition, int], wait_ms: int) -> list[Fetched]:
    """What retention removes meanwhile is passed over, with a warning."""
    try:
        return await reader.poll(wait_ms=wait_ms)
    except PositionOutOfRange as error:
        partition = Partition(*error.partition)
        print(f"warning: {partition} begins at {error.start} by now: what lay before was removed", file=sys.stderr)
        reader.add(partition, error.start)
        if error.start >= ends.get(partition, error.end + 1):
            del ends[partition]
            reader.drop(partition)
        return []


async def _ends(log: Log, partitions: list[Partition]) -> dict[Partition, int]:
    """Behind all that was written before this call. A producer is answered before its records can be read: that takes a
    moment, which is waited for; behind a transaction that stays open they are missing, with a warning."""
    try:
        async with asyncio.timeout(SETTLED_WITHIN_S):
            return await log.ends(partitions, settled=True)
    except (TimeoutError, LogBusy):
        ends, written = await log.ends(partitions), await log.written(partitions)
    if held := sorted(one for one in partitions if ends[one] < written[one]):
        print(
            f"warning: a transaction is open in {', '.join(map(str, held))}; what is behind its beginning is not shown "
            "(--follow waits for it)",
            file=sys.stderr,
        )
    return ends


def _add_new(reader: Reader, partitions: list[Partition], info: TopicInfo | None) -> None:
    """A topic may grow while it is followed."""
    for number in range(len(partitions), info.partitions if info is not None else 0):
        partitions.append(Partition(partitions[0].topic, number))
        reader.add(partitions[-1], 0)


def _headers(headers: Headers) -> dict[str, Any]:
    """By name; several of one name as a list."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(shown("bytes", value))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def codecs_of(topic: str, facts: dict[str, Any]) -> dict[str, Any]:
    """How to read a topic: as declared; a changelog as its table, and what a join keeps for itself as the bytes that it
    stores."""
    found = facts["topics"].get(topic)
    for table in facts["tables"].values():
        if table["changelog_topic"] == topic:
            form = StoredForm(table)
            found = {**table, "value_codec": form.value_codec, "stored": form}
            if not form.is_readable:
                found = {**table, "key_codec": "bytes", "value_codec": "bytes"}
    return found or {"key_codec": "bytes", "value_codec": "bytes"}


def is_internal(record: StoredRecord, codecs: dict[str, Any]) -> bool:
    """Whether a record of a changelog is none of the table's rows: the stream time of one that expires, an index or an older
    version of one that keeps time, or the marker of a snapshot that it goes on from."""
    if "changelog_topic" not in codecs:
        return False
    if record.offset == 0 and record.key == b"" and record.value is None:
        return True
    has_time = codecs.get("expire_ms") is not None or "form" in codecs
    if has_time and record.key == expiry.STREAM_TIME_KEY:
        return True
    return "stored" in codecs and codecs["stored"].row(record.key or b"", record.value) is None


def line(partition: Partition, record: StoredRecord, codecs: dict[str, Any]) -> dict[str, Any]:
    """A record as a JSON object; `produce` reads what this prints. One of a table of windows has the bounds of its window."""
    key, value = record.key, record.value
    if value is not None and codecs.get("expire_ms") is not None:
        value = expiry.value_of(value)
    bounds: dict[str, int | None] = {}
    if "stored" in codecs and (row := codecs["stored"].row(key or b"", value)) is not None:
        key, value = row.key, row.value
        if codecs["stored"].is_windowed:
            bounds = {"start_ms": row.start_ms, "end_ms": row.end_ms}
    return {
        "key": shown(codecs["key_codec"], key),
        **bounds,
        "value": shown(codecs["value_codec"], value),
        "timestamp_ms": record.timestamp_ms,
        "headers": _headers(record.headers),
        "partition": partition.number,
        "offset": record.offset,
    }


async def read_all(log: Log, topic: str) -> list[tuple[Partition, StoredRecord]]:
    """Every record of a topic that is there now."""
    info = (await log.topics([topic]))[topic]
    partitions = [Partition(topic, number) for number in range(info.partitions)]
    starts, ends = await log.starts(partitions), await log.ends(partitions)
    reader = log.reader()
    left = {p for p in partitions if ends[p] > starts[p]}
    for partition in left:
        reader.add(partition, starts[partition])
    found: list[tuple[Partition, StoredRecord]] = []
    while left:
        for part in await reader.poll():
            found += [(part.partition, record) for record in decode(part.data, part.position)] if part.data else []
            if part.next_position >= ends[part.partition]:
                left.discard(part.partition)
                reader.drop(part.partition)
    await reader.close()
    return found


async def has_records(log: Log, partition: Partition) -> bool:
    """Whether there is a record now; what transactions have written that were aborted is none."""
    end, at = (await log.ends([partition], settled=True))[partition], (await log.starts([partition]))[partition]
    reader = log.reader()
    try:
        reader.add(partition, at)
        while at < end:
            for part in await reader.poll():
                at = part.next_position
                if any(True for _ in (decode(part.data, part.position) if part.data else ())):
                    return True
        return False
    finally:
        await reader.close()


async def records_between(log: Log, partition: Partition, start: int, end: int) -> bool:
    """Whether a record lies there: behind the last one of a transaction there is a marker alone. A log that gives nothing for long has
    not said that there is none."""
    reader = log.reader()
    reader.add(partition, start)
    try:
        position, deadline = start, monotonic_s() + ANSWER_S
        while position < end and monotonic_s() < deadline:
            fetched = await reader.poll(wait_ms=1_000)
            if any(one.data for one in fetched):
                return True
            if fetched:
                position, deadline = fetched[-1].next_position, monotonic_s() + ANSWER_S
        return position < end
    finally:
        await reader.close()
