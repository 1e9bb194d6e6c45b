"""`orchestrator snapshot APP`: the tables of an application as its changelogs have them now, as a snapshot that restores begin from.

One rule: the app is not asked and not stopped: changelogs are read up to ends that are settled when it begins, each task's by
one executor, behind the newest snapshot that may still be used. A table without changes is linked, not written again. Nothing is
a snapshot before its manifest is written, last.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from orchestrator.cli.arguments import Parser
from orchestrator.clocks import monotonic_s, wall_ms
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.names import counted
from pipeline.spark import half_made
from pipeline.spark.attempts import Draft, opened
from pipeline.spark.ending import run_to_its_end
from pipeline.spark.log_source import Slice, read
from pipeline.spark.running import in_thread, spark
from pipeline.spark.session import absolute_log, failure
from pipeline.spark.source import ship_ours
from state import history, manifest, snapshot
from state.errors import SnapshotUnusable
from state.log import base, cut_changelogs
from state.log.base import Base
from state.log.cut_changelogs import Taken
from state.log.protocol import GroupLog, Partition, TopicInfo
from state.manifest import FileSum, ScopeManifest, SnapshotManifest, TableManifest
from state.private import make_folder, private_process
from state.snapshot import Origin
from state.store.rocksdb import RocksDbStore
from workers.commands.cluster import LOCAL, Cluster, add_cluster, cluster_of
from workers.commands.show import show_json
from workers.fleet.client import application_of, description
from workers.log.logs import log_url, open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SNAPSHOTS = ".orchestrator/snapshots"
ATTEMPTS = ".attempts"
CHUNK = 2_000


class TableJob(msgspec.Struct, frozen=True):
    """A table of a task: its changelog from `start` to `end`, behind what snapshot `before` has of it ("" for none)."""

    table: str
    topic: str
    topic_id: str
    start: int
    end: int
    before: str = ""


class ScopeJob(msgspec.Struct, frozen=True):
    """All tables of a task."""

    scope: str
    partition: int
    tables: tuple[TableJob, ...]


class SnapshotJob(msgspec.Struct, frozen=True):
    """What every executor must know."""

    root: str
    name: str
    log_url: str
    log_id: str
    time_ms: int
    scopes: tuple[ScopeJob, ...]


class ScopeFacts(msgspec.Struct, frozen=True):
    """What became of a task: the sum of its manifest, records that were read, entries, bytes, and the tables that were linked."""

    scope: str
    sum: str
    records: int
    entries: int
    bytes: int
    linked: int


def run(argv: list[str]) -> int:
    """Runs `orchestrator snapshot APP`; its exit code. Raises WrongUse, OrchestratorError."""
    parser = Parser("snapshot", "Write the tables of an application as a snapshot; it may run meanwhile.")
    parser.add_argument("app", metavar="APP")
    parser.setting("snapshots", default=SNAPSHOTS, help="folder for the snapshot")
    add_cluster(parser)
    parser.settings("log", "kafka-config")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    application = application_of(args.app)
    url = log_url(args, application, existing=True)
    facts = run_to_its_end(take(application, url, Path(args.snapshots), cluster=cluster_of(args)))
    if args.json:
        show_json(facts)
    else:
        print(_line(facts))
    return 0


async def take(
    application: str, url: str, root: Path, *, cluster: Cluster = LOCAL, session: SparkSession | None = None
) -> dict[str, Any]:
    """Writes a snapshot; returns its facts. Raises WrongUse for an application without tables, BaseMissing, SparkFailed."""
    begun = monotonic_s()
    url, root = absolute_log(url), root.absolute()
    log = await open_log(url, create=False)
    try:
        job, topics, past = await _job(log, application, url, root)
        folder = root / job.name
        await asyncio.to_thread(half_made.clean, root)
        work = half_made.begin(root, job.name)
        try:
            make_folder(folder)
            async with spark(session, f"snapshot {application}", cluster) as spark_:
                made: list[ScopeFacts] = await in_thread(spark_, _run, spark_, job)
            manifest.publish(
                root,
                SnapshotManifest(
                    snapshot=job.name,
                    application=application,
                    log_id=log.log_id,
                    time_ms=job.time_ms,
                    partitions={name: info.partitions for name, info in topics.items()},
                    scopes={one.scope: one.sum for one in made},
                    history=past,
                ),
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            work.remove()
    finally:
        await log.close()
    before = sorted({table.before for scope in job.scopes for table in scope.tables if table.before})
    return {
        "application": application,
        "snapshot": job.name,
        "snapshots": str(root),
        "tasks": len(made),
        "behind": before,
        **{name: sum(getattr(one, name) for one in made) for name in ("records", "entries", "bytes", "linked")},
        "seconds": round(monotonic_s() - begun, 2),
    }


def _line(facts: Mapping[str, Any]) -> str:
    behind = f", behind {', '.join(facts['behind'])}" if facts["behind"] else ""
    linked = f", {counted(facts['linked'], 'table')} without changes" if facts["linked"] else ""
    return (
        f"snapshot {facts['snapshot']}: {counted(facts['entries'], 'entry')} of {counted(facts['tasks'], 'task')}, "
        f"{facts['bytes']} bytes, {facts['seconds']:.1f} s\n"
        f"{counted(facts['records'], 'record')} read{behind}{linked}"
    )


# ---------------------------------------------------------------- in the driver


async def _job(log: GroupLog, application: str, url: str, root: Path) -> tuple[SnapshotJob, dict[str, TopicInfo], str]:
    """What is to be done, the changelogs, and the entry of the log's history under which it is done."""
    described = await description(log, application)
    tables = described["tables"]
    topics = await log.topics([facts["changelog_topic"] for facts in tables.values()])
    if not topics:
        raise WrongUse(f"'{application}' has no tables, so there is nothing to take a snapshot of")
    parts = [Partition(name, number) for name, info in topics.items() for number in range(info.partitions)]
    starts, ends = await log.starts(parts), await log.ends(parts, settled=True)
    now_ms = wall_ms()
    past = await history.read(log, application)
    kept = await log.metadata_of(application, base.BASE)
    bases = {name: base.of_topic(kept, info) for name, info in topics.items()}
    cut = await log.metadata_of(application, cut_changelogs.STARTS)
    taken = {name: cut_changelogs.taken(cut, info) for name, info in topics.items()}
    found = _Earlier(root, application, log.log_id, topics, past, bases, now_ms, await log.forgotten(parts), taken)
    scopes: dict[tuple[int, int], list[TableJob]] = {}
    for table, facts in sorted(tables.items()):
        info = topics.get(facts["changelog_topic"])
        for number in range(0 if info is None else info.partitions):
            assert info is not None
            where = Partition(info.name, number)
            scope = f"{facts['subtopology']}_{number}"
            made = await asyncio.to_thread(found.table, scope, table, where, starts[where], ends[where])
            scopes.setdefault((facts["subtopology"], number), []).append(made)
    jobs = tuple(ScopeJob(f"{sub}_{number}", number, tuple(scopes[sub, number])) for sub, number in sorted(scopes))
    name = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    return SnapshotJob(str(root), name, url, log.log_id, now_ms, jobs), topics, past.id


class _Earlier:
    """The snapshots that a new one may begin behind."""

    def __init__(
        self,
        root: Path,
        application: str,
        log_id: str,
        topics: Mapping[str, TopicInfo],
        past: history.History,
        bases: Mapping[str, Base | None],
        now_ms: int,
        forgotten: Mapping[Partition, int],
        taken: Mapping[str, Taken],
    ) -> None:
        self._application, self._forgotten, self._taken = application, forgotten, taken
        self._root, self._log_id, self._topics = root, log_id, topics
        self._past, self._bases, self._now_ms = past, bases, now_ms
        named = next((one.snapshot for one in bases.values() if one is not None), "")
        counts = {name: info.partitions for name, info in topics.items()}
        self._fitting = manifest.fitting(root, application, log_id, counts, base=named) if root.is_dir() else []

    def table(self, scope: str, table: str, where: Partition, start: int, end: int) -> TableJob:
        """From where its changelog is read, and behind what. Raises BaseMissing, ChangelogCut."""
        info, based = self._topics[where.topic], self._bases[where.topic]
        why = f"it is not in {self._root}"
        for one in self._fitting:
            if scope not in one.scopes:
                continue
            try:
                described = self._described(one, scope, table, where, start, end)
                snapshot.verify_files(self._root / one.snapshot / scope, described.files)
            except SnapshotUnusable as error:
                why = str(error)
                continue
            return TableJob(table, info.name, info.topic_id, described.offset, end, one.snapshot)
        if based is not None:
            raise base.missing(f"the changelog {where}", based, why, self._root)
        if start > self._taken[info.name].starts.get(where.number, 0):
            who = f"a snapshot of '{self._application}' has its tables"
            raise cut_changelogs.refused(self._application, where, start, who)
        return TableJob(table, info.name, info.topic_id, start, end)

    def _described(
        self, one: SnapshotManifest, scope: str, table: str, where: Partition, start: int, end: int
    ) -> TableManifest:
        """Raises SnapshotUnusable."""
        info, based = self._topics[where.topic], self._bases[where.topic]
        found = manifest.load_scope(self._root, one, scope)
        described = found.table(table)
        kept_ms = info.delete_retention_ms if based is None else base.FOR_EVER_MS
        bounds = {"start": start, "end": end, "delete_retention_ms": kept_ms, "now_ms": self._now_ms}
        bounds["forgotten"] = self._forgotten.get(where, 0)
        why = snapshot.problem(found, table, log_id=self._log_id, topic_id=info.topic_id, **bounds)
        if described is not None:
            why = why or base.needed(described.offset, based)
            if not one.base:
                why = why or self._past.problem(one.history, where, described.offset)
        if described is None or why is not None:
            raise SnapshotUnusable(why or f"it has no table {table}")
        return described


def _run(session: SparkSession, job: SnapshotJob) -> list[ScopeFacts]:
    """Raises SparkFailed, OrchestratorError."""
    text = msgspec.json.encode(job).decode()
    count = len(job.scopes)
    with opened(Path(job.root) / job.name / ATTEMPTS):
        try:
            ship_ours(session)
            rows = session.range(0, count, 1, count).mapInArrow(partial(write_scopes, text), "facts string")
            made = [msgspec.json.decode(row["facts"], type=ScopeFacts) for row in rows.collect()]
        except Exception as error:
            raise failure(session, error) from error
    if {one.scope for one in made} != {one.scope for one in job.scopes}:
        raise OrchestratorError(f"Spark wrote {len(made)} of {len(job.scopes)} tasks of the snapshot; run it again")
    return made


# ---------------------------------------------------------------- on an executor


def write_scopes(job_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of mapInArrow: numbers of tasks in, a row of facts for each out."""
    from pyspark import TaskContext

    job = msgspec.json.decode(job_text, type=SnapshotJob)
    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    private_process()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            facts = write_scope(job, job.scopes[number], attempt)
            yield pa.RecordBatch.from_pydict({"facts": [msgspec.json.encode(facts).decode()]})


def write_scope(job: SnapshotJob, scope: ScopeJob, attempt: int) -> ScopeFacts:
    """The files of a task and their manifest, under their name once they are whole."""
    folder = Path(job.root) / job.name
    draft, final = Draft(folder / ATTEMPTS, scope.scope, attempt), folder / scope.scope
    records = linked = 0
    tables: list[TableManifest] = []
    for table in scope.tables:
        before = _before(job, scope, table)
        if before is not None and before.offset == table.end:
            tables.append(_linked(job, scope, table, before, draft))
            linked += 1
            continue
        count, made = _written(job, scope, table, before, draft)
        records += count
        tables.append(made)
    sum_ = manifest.write_scope(draft.path, ScopeManifest(scope.scope, job.log_id, job.time_ms, tuple(tables)))
    if not draft.settle(final):  # another attempt was faster: its files hold the same, and its sum is theirs
        sum_ = manifest.sum_of_scope(final)
    size = sum(file.bytes for table in tables for file in table.files)
    return ScopeFacts(scope.scope, sum_, records, sum(table.entries for table in tables), size, linked)


def _before(job: SnapshotJob, scope: ScopeJob, table: TableJob) -> TableManifest | None:
    if not table.before:
        return None
    root = Path(job.root)
    return manifest.load_scope(root, manifest.load(root, table.before), scope.scope).table(table.table)


def _linked(job: SnapshotJob, scope: ScopeJob, table: TableJob, before: TableManifest, draft: Draft) -> TableManifest:
    """The files of the snapshot before, which hold what this one is to hold; copied where they cannot be linked."""
    source = Path(job.root) / table.before / scope.scope
    files: list[FileSum] = []
    for file in before.files:
        target = draft.folder(str(Path(file.name).parent)) / Path(file.name).name
        try:
            os.link(source / file.name, target)
        except OSError:
            shutil.copyfile(source / file.name, target)
        files.append(file)
    return TableManifest(before.table, before.topic, before.topic_id, before.offset, before.entries, tuple(files))


def _written(
    job: SnapshotJob, scope: ScopeJob, table: TableJob, before: TableManifest | None, draft: Draft
) -> tuple[int, TableManifest]:
    """(records read, the table): what was before and what came after it, in a store of this task's own, then in files."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    with tempfile.TemporaryDirectory(prefix="stream-orchestrator-", dir=local or None) as scratch:
        store = RocksDbStore(Path(scratch) / "store", stamp={})
        try:
            if before is not None and before.files:
                source = Path(job.root) / table.before / scope.scope
                snapshot.verify_files(source, before.files)
                store.ingest([source / file.name for file in before.files])
            count = 0
            for batch in read(job.log_url, Slice(table.topic, scope.partition, table.start, table.end)):
                count += batch.num_rows
                pairs = list(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
                for at in range(0, len(pairs), CHUNK):
                    store.write(dict(pairs[at : at + CHUNK]), table.end)
            origin = Origin(job.log_id, table.topic, table.topic_id, table.end, job.time_ms)
            return count, snapshot.write_table(draft.path, table.table, store.range(None, None), origin)
        finally:
            store.close()
