"""A PySpark data source over the log: `spark.read.format("orchestrator.log")`, after `orchestrator.spark.register(spark)`.

Options: `log` (a log URL), `topics` (names, comma-separated), `app` (its id, or MODULE:APP: key and value of one topic get the types that
the app defines), `until` (JSON, "topic-partition" -> position; by default
the ends when the query is planned). One Spark partition a topic partition. `order_ms` is the running maximum of the
timestamps of its partition: sorting by it merges partitions exactly as a task does, by the smallest timestamp among
their heads. `headers` are MessagePack pairs, null for a record without any.
One rule: a read goes to its end position, or fails; it never ends short.
`log_frame` is the same read without Spark's Python processes that plan a data source, which cost seconds to start.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from orchestrator.clocks import monotonic_s
from orchestrator.errors import RefusedBySafety, WrongUse
from pipeline.errors import CodecError
from pipeline.spark.rows import packed
from pipeline.spark.source_options import check_options, option
from pipeline.spark.typed import Column, column
from state.errors import StateError, UnknownTopic
from state.log.batches import decode
from state.log.protocol import Log, Partition, StoredRecord
from workers.fleet.client import application_of, description
from workers.log.logs import open_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, order_ms bigint, key binary, value binary, "
    "headers binary"
)
NAME = "orchestrator.log"
OPTIONS = ("app", "log", "topics", "until")
POLL_BYTES = 4 << 20
WAIT_MS, PATIENCE_S = 500, 120.0  # a broker that is started again takes a while
MORE_TIMES = 4  # what came meanwhile is read as often: the last time within a few milliseconds
NOTHING: Mapping[str, int] = MappingProxyType({})


class InputsRemoved(RefusedBySafety):
    """What was to be computed of is not in the log any more; `count`: how many offsets."""

    def __init__(self, removed: Mapping[Partition, tuple[int, int]]) -> None:
        (first, (at, gone)), *more = sorted(removed.items())
        self.count = sum(gone - at for at, gone in removed.values())
        super().__init__(
            f"retention removed {first} from {at} to {gone - 1}{f', and more of {len(more)} others,' if more else ''} while Spark was at "
            "work, before it was read; nothing is written: give the topic a longer retention, then run it again"
        )


class Slice(InputPartition):
    """One topic partition, from its start to `end`; with `goes_on` to where the partition ends once it is read, a few times over."""

    def __init__(self, topic: str, number: int, start: int, end: int, goes_on: bool = False) -> None:
        super().__init__(f"{topic}-{number}")
        self.topic, self.number, self.start, self.end, self.goes_on = topic, number, start, end, goes_on


class LogSource(DataSource):
    """See the module text."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        found = asyncio.run(_types(dict(self.options)))
        if found is None:
            return SCHEMA
        typed = {f"{name} binary": f"{name} {one.ddl}" for name, one in found.items()}
        return ", ".join(typed.get(column, column) for column in SCHEMA.split(", "))

    def reader(self, schema: Any) -> LogReader:
        return LogReader(dict(self.options))


class LogReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        check_options(NAME, options, OPTIONS)
        self._url = option(NAME, options, "log")
        self._topics = _named(options)
        self._until = _until(options)
        self._types = asyncio.run(_types(options))

    def partitions(self) -> list[Slice]:
        if self._until is not None:
            _refuse_beyond(self._until, asyncio.run(slices(self._url, self._topics, None)))
        return asyncio.run(slices(self._url, self._topics, self._until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        for batch in read(self._url, partition):
            yield batch if self._types is None else _typed(batch, self._types)


def _named(options: Mapping[str, str]) -> list[str]:
    """The topics that are read. Raises WrongUse."""
    given = option(NAME, options, "topics")
    names = [name.strip() for name in given.split(",")]
    found = list(dict.fromkeys(name for name in names if name))  # rows of one that is named twice are no others
    if not found:
        raise WrongUse(f"{NAME}: topics {given!r} names none; write their names, with commas between them")
    return found


def _until(options: Mapping[str, str]) -> dict[str, int] | None:
    """Raises WrongUse."""
    given = options.get("until")
    if given is None:
        return None
    try:
        return msgspec.json.decode(given, type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise WrongUse(f'{NAME}: until {given!r} ({error}); write JSON like {{"payments-0": 12}}') from None


def _refuse_beyond(until: Mapping[str, int], there: Sequence[Slice]) -> None:
    """Raises WrongUse for a position that is none, or behind the end of its partition."""
    for one in there:
        where = f"{one.topic}-{one.number}"
        if not 0 <= until.get(where, 0) <= one.end:
            raise WrongUse(f"{NAME}: until says {until[where]} of {where}, which has positions from 0 to {one.end}")


async def _types(options: Mapping[str, str]) -> dict[str, Column] | None:
    """The columns `key` and `value` as an app defines them; None where no app is named. Raises WrongUse."""
    if "app" not in options:
        return None
    topics = _named(options)
    log = await open_log(option(NAME, options, "log"), create=False)
    try:
        described = await description(log, application_of(options["app"]))
    finally:
        await log.close()
    plain = {
        table["changelog_topic"]: table
        for table in described["tables"].values()
        if "form" not in table and table["expire_ms"] is None  # others keep times beside their values
    }
    facts = {**described["topics"], **plain}.get(topics[0]) if len(topics) == 1 else None
    if facts is None:
        known = ", ".join(sorted({**described["topics"], **plain}))
        raise WrongUse(f"with app, topics names one topic of '{described['id']}': {known}")
    key = column(facts["key_codec"], facts.get("key_schema"))
    return {"key": key, "value": column(facts["value_codec"], facts.get("schema"))}


def _typed(batch: pa.RecordBatch, types: Mapping[str, Column]) -> pa.RecordBatch:
    """Raises CodecError for a record that is none of its topic's type."""
    for name, one in types.items():
        data = batch.column(name).to_pylist()
        try:
            cells = pa.array(map(one.value, data), one.arrow)
        except (CodecError, pa.ArrowException, OverflowError):
            for number, alone in enumerate(data):
                _check(batch, number, name, one, alone)
            raise
        batch = batch.set_column(batch.schema.get_field_index(name), name, cells)
    return batch


def _check(batch: pa.RecordBatch, number: int, name: str, type_: Column, data: bytes | None) -> None:
    try:
        pa.array([type_.value(data)], type_.arrow)
    except (CodecError, pa.ArrowException, OverflowError) as error:
        topic, partition, offset = (batch.column(at)[number].as_py() for at in ("topic", "partition", "offset"))
        raise CodecError(
            f"{topic}-{partition}, offset {offset}: the {name} is none of its type ({error}); without the option app, {NAME} shows bytes"
        ) from None


def log_frame(
    session: SparkSession,
    url: str,
    topics: Sequence[str],
    until: Mapping[str, int] | None = None,
    since: Mapping[str, int] = NOTHING,
    *,
    goes_on: bool = False,
    is_whole: bool = False,
) -> DataFrame:
    """Topics of a log as a DataFrame with the columns of the data source, from `since` (or their beginning) on. With `goes_on` also
    what is written while it is read: each key that has a record then is seen, though compaction removes earlier ones meanwhile. With
    `is_whole` nothing since `since` may be missing. Not to be called on an event loop. Raises InputsRemoved."""
    planned = asyncio.run(slices(url, topics, until, since, is_whole=is_whole))
    listed = [[s.topic, s.number, s.start, s.end, goes_on] for s in planned if goes_on or s.end > s.start]
    if not listed:
        return session.createDataFrame([], SCHEMA)
    reading = partial(read_slices, url, json.dumps(listed))
    return session.range(0, len(listed), 1, len(listed)).mapInArrow(reading, SCHEMA)


def read_slices(url: str, slices: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: the slices that the rows of the batches number."""
    listed = json.loads(slices)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read(url, Slice(*listed[number]))


async def slices(
    url: str,
    topics: Sequence[str],
    until: Mapping[str, int] | None,
    since: Mapping[str, int] = NOTHING,
    *,
    is_whole: bool = False,
) -> list[Slice]:
    """What is read of each partition of some topics, which with `is_whole` is to have all since `since`: what is removed behind this
    moment is missed by who reads it. Raises UnknownTopic, InputsRemoved."""
    log = await open_log(url, create=False)
    try:
        known = await log.topics(topics)
        missing = sorted(set(topics) - set(known))
        if missing:
            raise UnknownTopic(f"{url} has no topic {missing[0]!r}: check its name, or create it first")
        found = [Partition(topic, n) for topic in topics for n in range(known[topic].partitions)]
        starts, ends = await log.starts(found), await log.ends(found)
    finally:
        await log.close()
    if until is not None:
        unsaid = [str(p) for p in found if str(p) not in until]
        if unsaid:
            raise WrongUse(f"until says nothing of {unsaid[0]}; it wants a position of each partition that is read")
        ends = {p: int(until[str(p)]) for p in found}
    wanted = {p: (since[str(p)], min(starts[p], ends[p])) for p in found if is_whole and str(p) in since}
    if removed := {p: (at, gone) for p, (at, gone) in wanted.items() if at < gone}:
        raise InputsRemoved(removed)
    return [Slice(p.topic, p.number, max(starts[p], since.get(str(p), 0)), ends[p]) for p in found]


def read(url: str, part: Slice) -> Iterator[pa.RecordBatch]:
    """The records of a slice, in batches."""
    loop = asyncio.new_event_loop()
    rows = _rows(url, part)
    latest = None
    try:
        while (records := loop.run_until_complete(_following(rows))) is not None:
            batch, latest = _batch(part, records, latest)
            yield batch
    finally:
        loop.run_until_complete(rows.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _following(rows: AsyncIterator[list[StoredRecord]]) -> list[StoredRecord] | None:
    return await anext(rows, None)


async def _rows(url: str, part: Slice) -> AsyncGenerator[list[StoredRecord], None]:
    if part.end <= part.start and not part.goes_on:
        return
    log: Log = await open_log(url, create=False)
    reader = log.reader()
    where = Partition(part.topic, part.number)
    reader.add(where, part.start)
    try:
        position, end, since, looks = part.start, part.end, monotonic_s(), MORE_TIMES * part.goes_on
        while position < end or looks:
            if position >= end:
                looks, end = looks - 1, (await log.ends([where]))[where]
                continue
            fetched = await reader.poll(max_bytes_per_partition=POLL_BYTES, wait_ms=WAIT_MS)
            if not fetched:
                if (await log.ends([where]))[where] < end:
                    raise StateError(f"{where} ended at {position}, before {end}: the log lost records it had")
                if monotonic_s() - since > PATIENCE_S:
                    raise StateError(
                        f"{where} gave nothing from {position} on for {PATIENCE_S:g} s, before its end {end}"
                    )
                continue
            since = monotonic_s()
            for item in fetched:
                records = decode(item.data, item.position) if item.data else []
                records = [one for one in records if part.goes_on or one.offset < end]
                position = item.next_position
                if records:
                    yield records
    finally:
        await reader.close()
        await log.close()


def _batch(part: Slice, records: list[StoredRecord], latest: int | None) -> tuple[pa.RecordBatch, int]:
    """Rows of consecutive records; `latest` is the running maximum before them, and after them."""
    running = records[0].timestamp_ms if latest is None else latest
    order: list[int] = []
    for record in records:
        running = max(running, record.timestamp_ms)
        order.append(running)
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([part.topic] * len(records), pa.string()),
            "partition": pa.array([part.number] * len(records), pa.int32()),
            "offset": pa.array([r.offset for r in records], pa.int64()),
            "timestamp_ms": pa.array([r.timestamp_ms for r in records], pa.int64()),
            "order_ms": pa.array(order, pa.int64()),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "headers": pa.array([packed(r.headers) for r in records], pa.binary()),
        }
    )
    return batch, running
