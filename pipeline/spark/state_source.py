"""A PySpark data source over tables: `spark.read.format("orchestrator.state")`, after `orchestrator.spark.register(spark)`.

Options: `app` (its id, or MODULE:APP), `log` (a log URL), `table`; `of`: "changelog" (the default: the table as the log has it),
"snapshot" (of the folder `snapshots`, the newest, or the one called `snapshot`) or "stores" (what the running instances have, or
what lies in the folder `state`; the instances want the secret, `secret` or in its usual place, and `tls-cert`, `tls-key`, `tls-ca`
as commands do). `key` reads one key alone, from the one task that has it, `task` one task (or several, with commas).
One Spark partition a task. Columns: task, partition, key, start_ms and end_ms of windows, value, typed as the app defines them.
One rule: predicates come as options. Spark keeps a filter that it pushed into a relation for the next query of the same one,
whose answer would lack rows; with options each `load()` says what it reads.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from orchestrator.cli.settings import TABLE
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.tls import make_tls
from orchestrator.errors import WrongUse
from orchestrator.names import counted
from pipeline.errors import CodecError
from pipeline.spark.inputs import MEMORY_BYTES
from pipeline.spark.live_stores import ON_DISK, Copy, described, made_whole, whole_of
from pipeline.spark.log_source import Slice, read
from pipeline.spark.rows import FLUSH_ROWS
from pipeline.spark.source_options import check_options, option
from pipeline.spark.task_state import TaskState
from pipeline.spark.typed import Column, column
from pipeline.tables import expiry
from pipeline.time.stored_form import StoredForm, StoredRow
from pipeline.values.json_values import from_text, shown
from pipeline.values.key_schemas import key_schema
from pipeline.values.partitioner import partition_of
from state import manifest, snapshot
from state.errors import SnapshotUnusable, StateError
from state.left_stores import left_stores
from state.log import base, cut_changelogs
from state.log.protocol import GroupLog, Partition
from state.store.rocksdb import is_there, pairs_on_disk
from workers.connection.credentials import NoSecret, credentials_of
from workers.fleet.client import Client, application_of, description, table_of
from workers.fleet.presence import is_looked_after
from workers.log.logs import open_log

NAME = "orchestrator.state"
KINDS = ("changelog", "snapshot", "stores")
TLS = ("tls-cert", "tls-key", "tls-ca")
OPTIONS = ("app", "key", "log", "of", "secret", "snapshot", "snapshots", "state", "table", "task", *TLS)
Pairs = Iterator[tuple[bytes, bytes]]
_TIME = expiry.STREAM_TIME_KEY, expiry.STREAM_TIME_KEY + b"\x00"  # a range of that key alone


class Facts(NamedTuple):
    """What is read: the description of the table, and the bytes of the key (None: all keys)."""

    facts: dict[str, Any]
    form: StoredForm
    key: bytes | None
    columns: tuple[Column, Column]

    @property
    def schema(self) -> list[tuple[str, str, Any]]:
        """(name, type in Spark, type in Arrow)."""
        bounds = ("start_ms", "end_ms") if self.form.is_windowed else ()
        return [
            ("task", "string", pa.string()),
            ("partition", "int", pa.int32()),
            ("key", self.columns[0].ddl, self.columns[0].arrow),
            *((name, "bigint", pa.int64()) for name in bounds),
            ("value", self.columns[1].ddl, self.columns[1].arrow),
        ]


class TaskPart(InputPartition):
    """A task's table: in a store (`path`), in a snapshot (`root`, `name`), or a changelog (`end`) behind what `name` has of it."""

    def __init__(
        self, task: str, *, path: str = "", root: str = "", name: str = "", start: int = 0, end: int = -1
    ) -> None:
        super().__init__(task)
        self.task, self.path, self.root, self.name, self.start, self.end = task, path, root, name, start, end

    @property
    def number(self) -> int:
        return int(self.task.partition("_")[2])


class StateSource(DataSource):
    """See the module text."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        facts = asyncio.run(_facts(dict(self.options)))
        return ", ".join(f"{name} {ddl}" for name, ddl, _ in facts.schema)

    def reader(self, schema: Any) -> StateReader:
        return StateReader(dict(self.options))


class StateReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._facts = asyncio.run(_facts(options))

    def partitions(self) -> list[TaskPart]:
        return asyncio.run(_plan(self._options, self._facts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPart):
            return  # Spark's own, where there is none: the key is of none of the tasks that are named
        found = self._facts
        schema = pa.schema([(name, arrow) for name, _, arrow in found.schema])
        with ExitStack() as stack:
            rows = _rows(found, _pairs(self._options, found, partition, stack))
            while part := list(islice(rows, FLUSH_ROWS)):
                yield _batch([_cells(found, partition, row) for row in part], schema)


# ---------------------------------------------------------------- what is asked for


async def _facts(options: Mapping[str, str]) -> Facts:
    """Raises WrongUse."""
    check_options(NAME, options, OPTIONS)
    kind = options.get("of", "changelog")
    if kind not in KINDS:
        raise WrongUse(f"of '{kind}': write {', '.join(KINDS)}")
    for name, needed in (("snapshot", "snapshot"), *((name, "stores") for name in ("state", "secret", *TLS))):
        if name in options and kind != needed:
            raise WrongUse(f'{NAME}: the option {name} is for .option("of", "{needed}"), and this reads the {kind}')
    application, table = application_of(option(NAME, options, "app")), option(NAME, options, "table")
    log = await open_log(option(NAME, options, "log"), create=False)
    try:
        app = await description(log, application)
        facts = table_of(app, table)
        topic = facts["changelog_topic"]
        found = (await log.topics([topic])).get(topic)
    finally:
        await log.close()
    if found is not None:  # more than those described where it was repartitioned, and did not start since
        facts["partitions"] = found.partitions
    form = StoredForm(facts)
    if not form.is_readable:
        raise WrongUse(f"'{table}' holds what a join keeps for itself ({form.kind}); read the tables that it joins")
    try:
        typed, schema = options.get("key"), key_schema(facts)
        key = None if typed is None else from_text(facts["key_codec"], typed, schema)
    except CodecError as error:
        raise WrongUse(str(error)) from None
    of_value = facts.get("schema") if form.kind != "timers" else None
    columns = column(facts["key_codec"], facts.get("key_schema")), column(form.value_codec, of_value)
    return Facts(facts, form, key, columns)


def _tasks(options: Mapping[str, str], found: Facts, partitions: int) -> list[str]:
    """The tasks that are read, of a table in so many partitions. Raises WrongUse."""
    facts = found.facts
    everyone = [f"{facts['subtopology']}_{number}" for number in range(partitions)]
    if "task" in options:
        chosen = list(dict.fromkeys(name.strip() for name in options["task"].split(",")))  # none is read twice
        strange = sorted(set(chosen) - set(everyone))
        if strange:
            raise WrongUse(f"task '{strange[0]}' has no part of the table; {everyone[0]} to {everyone[-1]} have")
        everyone = chosen
    if found.key is not None and not facts["routed"] and not facts["local"]:
        owner = f"{facts['subtopology']}_{partition_of(found.key, partitions)}"
        return [task for task in everyone if task == owner]
    return everyone


# ---------------------------------------------------------------- planned


async def _plan(options: Mapping[str, str], found: Facts) -> list[TaskPart]:
    """Raises WrongUse, StateError."""
    log = await open_log(option(NAME, options, "log"), create=False)
    try:
        application = application_of(options["app"])
        if options.get("of") == "snapshot":
            return _of_snapshot(log, application, options, found)
        tasks = _tasks(options, found, found.facts["partitions"])
        match options.get("of", "changelog"):
            case "stores":
                return await _of_stores(log, application, options, found, tasks)
        topic = found.facts["changelog_topic"]
        parts = {task: Partition(topic, int(task.partition("_")[2])) for task in tasks}
        starts, ends = await log.starts(list(parts.values())), await log.ends(list(parts.values()))
        info = (await log.topics([topic]))[topic]
        based = base.of_topic(await log.metadata_of(application, base.BASE), info)
        if based is None:
            what = f"the log is to say what table {options['table']} has"
            await cut_changelogs.refuse(log, application, [info], what)
            return [TaskPart(task, start=starts[p], end=ends[p]) for task, p in parts.items()]
        if "snapshots" not in options:
            raise base.missing(f"the changelog {topic}", based, "no folder of snapshots is named")
        more = {"root": options["snapshots"], "name": based.snapshot}
        return [TaskPart(task, start=max(starts[p], based.offset), end=ends[p], **more) for task, p in parts.items()]
    finally:
        await log.close()


def _of_snapshot(log: GroupLog, application: str, options: Mapping[str, str], found: Facts) -> list[TaskPart]:
    root, topic = Path(option(NAME, options, "snapshots")), found.facts["changelog_topic"]
    if "snapshot" in options:
        chosen = manifest.load(root, options["snapshot"])
    else:
        counts = {topic: found.facts["partitions"]}
        same = [one for one in manifest.listing(root)[0] if (one.application, one.log_id) == (application, log.log_id)]
        fitting = [one for one in same if all(one.partitions.get(name) == count for name, count in counts.items())]
        if not fitting:
            raise SnapshotUnusable(f"{root} has no snapshot of '{application}' with this table; take one first")
        chosen = fitting[-1]
    if chosen.application != application:
        raise WrongUse(f"snapshot {chosen.snapshot} is of '{chosen.application}', not of '{application}'")
    # A repartition since then does not say where a key lay before it.
    tasks = _tasks(options, found, chosen.partitions.get(topic, found.facts["partitions"]))
    missing = sorted(set(tasks) - set(chosen.scopes))
    if missing:
        raise SnapshotUnusable(
            f"snapshot {chosen.snapshot} has no {missing[0]}; it was taken of {len(chosen.scopes)} tasks"
        )
    return [TaskPart(task, root=str(root), name=chosen.snapshot) for task in tasks]


def _credentials(application: str, url: str, options: Mapping[str, str]) -> Credentials:
    """Raises WrongUse: of a log on Kafka no place is known where the secret lies but the state folder's."""
    tls = make_tls(*(options.get(name, "") for name in TLS))
    try:
        return credentials_of(
            application, url, options.get("state", TABLE["state-dir"].default), options.get("secret", ""), tls
        )
    except NoSecret as error:
        missing = str(error).partition(";")[0]
        raise WrongUse(
            f'{missing}; name the file with .option("secret", ...), or the folder of --state-dir with .option("state", ...)'
        ) from None


async def _of_stores(
    log: GroupLog, application: str, options: Mapping[str, str], found: Facts, tasks: list[str]
) -> list[TaskPart]:
    """Of each task the copy that is whole. Raises StateError where a task has none that can be read here."""
    topic = found.facts["changelog_topic"]
    places = {task: Partition(topic, int(task.partition("_")[2])) for task in tasks}
    if await is_looked_after(log, application):
        credentials = _credentials(application, options["log"], options)
        client = Client(log, application, lambda: credentials, options["log"])
        try:
            whole, problems = await made_whole(log, client, options["table"], places)
        finally:
            await client.close()
    else:
        whole, problems = await _on_disk(log, application, options, topic, places)
    for task in tasks:
        if task not in whole:
            raise StateError(f"no store of {task} can be read: {'; '.join(problems) or 'there is none'}")
    return [TaskPart(task, path=whole[task].path) for task in tasks]


async def _on_disk(
    log: GroupLog, application: str, options: Mapping[str, str], topic: str, places: Mapping[str, Partition]
) -> tuple[dict[str, Copy], list[str]]:
    """By task the store in the folder `state` that has all that its changelog has: a process that was killed leaves one that lacks keys."""
    table, problems = options["table"], list[str]()
    state = Path(option(NAME, options, "state")) / application
    judge = await left_stores(log, application, [topic])
    lying = [
        Copy(p.parent.parent.name, ON_DISK, task, table, str(p), 0)
        for task in places
        for p in state.glob(f"*/{task}/{table}")
    ]
    good = described(lying, log.log_id, problems, judge, {table: topic})
    ends = await log.ends(list(places.values()), settled=True)
    whole = await whole_of(log, good, places, ends)
    for one in good:
        if one.task not in whole:
            lack = f"the last {counted(ends[places[one.task]] - one.offset, 'offset')} of its changelog"
            problems.append(f"{one}, table {table}, lacks {lack}; a start of the app restores it, or read of=changelog")
    return whole, problems


# ---------------------------------------------------------------- read on an executor


def _pairs(options: Mapping[str, str], found: Facts, part: TaskPart, stack: ExitStack) -> Pairs:
    """All pairs of a task's table, of one whose entries expire its time before the others; what they need stays until the stack is
    closed."""
    expires = found.facts.get("expire_ms") is not None
    if part.path:
        if not is_there(Path(part.path)):  # RocksDB would make it
            raise StateError(
                f"the store {part.path} is not there any more: copies that instances make are kept for an hour; load() the DataFrame again"
            )
        store = Path(part.path)
        return chain(pairs_on_disk(store, *_TIME) if expires else (), pairs_on_disk(store, b"", None))
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-orchestrator-")))
    before: Pairs = iter(())
    if part.name:
        root, table = Path(part.root), options["table"]
        found_there = manifest.load_scope(root, manifest.load(root, part.name), part.task).table(table)
        if found_there is None:
            raise SnapshotUnusable(f"snapshot {part.name} has no table {table}")
        first = expiry.STREAM_TIME_KEY if expires and part.end < 0 else None
        before = snapshot.read_table(root / part.name / part.task, found_there, scratch / "store", first)
        if part.end < 0:
            return before
    state = TaskState(["table"], MEMORY_BYTES)
    stack.callback(state.close)
    while some := dict(islice(before, FLUSH_ROWS)):
        state.write({"table": some})
    where = Slice(found.facts["changelog_topic"], part.number, part.start, part.end)
    for batch in read(options["log"], where):
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        state.write({"table": dict(zip(keys, values, strict=True))})
    made = state.stores["table"]
    return chain(made.range(*_TIME) if expires else (), made.pairs())


def _rows(found: Facts, pairs: Pairs) -> Iterator[StoredRow]:
    """The rows of the app: what has expired, and what a table keeps for itself, is left out."""
    expire_ms = found.facts.get("expire_ms")
    for key, value in pairs if expire_ms is None else _unexpired(pairs, expire_ms):
        row = found.form.row(key, value)
        if row is not None and (found.key is None or row.key == found.key):
            yield row


def _unexpired(pairs: Pairs, expire_ms: int) -> Pairs:
    """Of pairs that begin with the time of their table, where it has one. It comes again at its place."""
    now = expiry.stream_time(None)
    for key, raw in pairs:
        if key == expiry.STREAM_TIME_KEY:
            now = expiry.stream_time(raw)
        elif (live := expiry.live_value(raw, expire_ms, now)) is not None:
            yield key, live


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Raises CodecError where a value is none of its column's type in Spark."""
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError):
        for row in rows:
            try:
                pa.RecordBatch.from_pylist([row], schema=schema)
            except (pa.ArrowException, OverflowError) as error:
                where = f"task {row['task']}, key {row['key']!r}"
                raise CodecError(f"{where}: the value does not fit the column in Spark: {error}") from None
        raise


def _cells(found: Facts, part: TaskPart, row: StoredRow) -> dict[str, Any]:
    bounds = {"start_ms": row.start_ms, "end_ms": row.end_ms} if found.form.is_windowed else {}
    try:
        key, value = found.columns[0].value(row.key), found.columns[1].value(row.value)
    except CodecError as error:
        raise CodecError(f"task {part.task}, key {shown(found.columns[0].codec, row.key)!r}: {error}") from None
    return {"task": part.task, "partition": part.number, "key": key, **bounds, "value": value}
