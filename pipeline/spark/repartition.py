"""`orchestrator repartition MODULE:APP --to N`: the tables of an app lie by more partitions, and nothing is processed again.

One rule: an entry lies where the records of its key come to. What is moved is each entry that does not, for the new count: a deletion
in the partition that it leaves and its value in the one that it comes to, all in one transaction of the log. So a process that ends
on the way leaves an app that is refused at its start, or as it was, and the same command ends it: it moves what still lies wrong.
The app is stopped and has processed its inputs; stores on disk stay, and replay what moved.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.cli.arguments import Parser, checked
from orchestrator.clocks import monotonic_s, wall_ms
from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.names import counted
from orchestrator.setting import whole_number
from pipeline.app import App
from pipeline.calls.task_tables import routed
from pipeline.definitions.definition import TableDef
from pipeline.definitions.topology import Subtopology, Topology
from pipeline.loading import load
from pipeline.spark.running import in_thread, spark
from pipeline.spark.session import absolute_log, failure
from pipeline.spark.source import Source, ship
from pipeline.values.partitioner import partition_of
from state.log import base
from state.log.group_store import AppMetadata, Lease
from state.log.protocol import GroupLog, NewRecord, Partition
from workers.commands.cluster import LOCAL, Cluster, add_cluster, cluster_of
from workers.commands.run import state_dir
from workers.commands.show import show_json
from workers.commands.topics import refusal
from workers.fleet.held_lease import Held, lease_held, start_refused
from workers.fleet.presence import is_looked_after
from workers.log.logs import log_url, open_log
from workers.prepare import DESCRIPTION, NUMBERING, REPARTITION, REPARTITIONED, refuse_half_done

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MOVES = "topic string, here int, there int, key binary, value binary"
FOR_MOVES = "stop all its instances, then repartition it"


@dataclass(frozen=True)
class Layout:
    """What is laid out by the count: changelogs (by table), re-keys and inputs, with the partitions that each has now."""

    topology: Topology
    changelogs: Mapping[str, str]
    inputs: Sequence[str]
    counts: Mapping[str, int]
    subtopologies: Sequence[Subtopology]

    def sources(self) -> list[Partition]:
        return [Partition(name, number) for name in self.inputs for number in range(self.counts[name])]

    def changes(self) -> list[Partition]:
        return [Partition(name, number) for name in self.changelogs for number in range(self.counts[name])]


class MoveJob(msgspec.Struct, frozen=True):
    """What every executor must know."""

    source: Source
    numbering: dict[str, Any]
    tables: dict[str, str]
    to: int


def run(argv: list[str]) -> int:
    """Runs `orchestrator repartition`; its exit code. Raises WrongUse, RefusedBySafety."""
    parser = Parser(
        "repartition", "Give the tables and inputs of an app that is stopped more partitions; state is kept."
    )
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--to", type=checked(whole_number), required=True, metavar="N", help="how many partitions")
    parser.add_argument("--plan", action="store_true", help="show what would move, and change nothing")
    add_cluster(parser)
    parser.settings("log", "kafka-config", "state-dir")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if ":" not in args.app:
        raise WrongUse(f"'{args.app}' is no MODULE:APP; the code of the app says where a key belongs")
    url = log_url(args, load(args.app).id, existing=True)
    root = Path(state_dir(args, url))
    facts = asyncio.run(repartition(args.app, url, args.to, root, is_plan=args.plan, cluster=cluster_of(args)))
    if args.json:
        show_json(facts)
    else:
        print(_text(facts))
    return 0


async def repartition(
    app_ref: str,
    url: str,
    to: int,
    root: Path,
    *,
    is_plan: bool = False,
    cluster: Cluster = LOCAL,
    session: SparkSession | None = None,
) -> dict[str, Any]:
    """Moves what lies wrong for `to` partitions; returns the facts. Raises WrongUse, RefusedBySafety, SparkFailed."""
    begun = monotonic_s()
    app, url = load(app_ref), absolute_log(url)
    log = await open_log(url, create=False)
    try:
        noted = await log.metadata(app.id, REPARTITION, "to")
        layout = await _layout(log, app)
        await _refuse(log, app, layout, to, noted)
        before = min(layout.counts.values())
        facts = {"application": app.id, "from": before, "to": to, "topics": sorted(layout.counts)}
        if noted is None and before == to:
            return {**facts, "outcome": "nothing to do", "moved": 0, "entries": 0, "bytes": 0, "seconds": 0.0}
        async with spark(session, f"repartition {app.id}", cluster) as spark_:
            if is_plan:
                found = await in_thread(spark_, _moves, spark_, app_ref, url, layout, to)
                return {**facts, "outcome": "plan", **_sizes(*found), "seconds": round(monotonic_s() - begun, 2)}
            async with (
                start_refused(log, app.id, root, "repartition"),
                lease_held(log, app.id, "repartition") as held,
            ):
                await _fence(log, held.lease)
                await _refuse_unread(log, app, layout)
                await log.ends(layout.changes(), settled=True)  # what was committed last can be read from now on
                found = await in_thread(spark_, _moves, spark_, app_ref, url, layout, to)
                paused = monotonic_s()
                await _carry_out(log, held, layout, to, found[0])
        sizes = {**_sizes(*found), "write_s": round(monotonic_s() - paused, 2)}
        return {**facts, "outcome": "done", **sizes, "seconds": round(monotonic_s() - begun, 2)}
    finally:
        await log.close()


def _sizes(moves: Sequence[Any], entries: int) -> dict[str, int]:
    return {
        "entries": entries,
        "moved": len(moves),
        "bytes": sum(len(row["key"]) + len(row["value"]) for row in moves),
    }


def _text(facts: Mapping[str, Any]) -> str:
    if facts["outcome"] == "nothing to do":
        return f"{facts['application']}: it lies by {facts['to']} partitions; nothing to do"
    what = "would move" if facts["outcome"] == "plan" else "moved"
    text = (
        f"{facts['application']}: {facts['from']} -> {facts['to']} partitions; {facts['moved']} of "
        f"{counted(facts['entries'], 'entry')} {what}, {facts['bytes']} bytes, {facts['seconds']:.1f} s"
    )
    if facts["outcome"] == "plan":
        return f"{text}\nthe app is stopped for about that time; grown: {', '.join(facts['topics'])}"
    return f"{text}, of which {facts['write_s']:.1f} s to write them; start it with `orchestrator run`"


# ---------------------------------------------------------------- before


async def _layout(log: GroupLog, app: App) -> Layout:
    """Raises WrongUse for an app that the log does not know, or without tables."""
    kept = await log.metadata(app.id, NUMBERING, "app")
    if kept is None:
        raise WrongUse(f"the log knows no application '{app.id}', so there is nothing to repartition")
    topology = app.topology(json.loads(kept))
    chosen = [sub for sub in topology.subtopologies if sub.tables]
    if not chosen:
        raise WrongUse(f"'{app.id}' has no tables; give its inputs more partitions with `orchestrator topics grow`")
    inputs: set[str] = set()
    while (more := {name for sub in chosen for name in sub.sources}) != inputs:
        inputs = more
        chosen = [sub for sub in topology.subtopologies if inputs & set(sub.sources)]
    changelogs = {app.tables[table].changelog: table for sub in chosen for table in sub.tables}
    found = await log.topics([*inputs, *changelogs])
    counts = {name: info.partitions for name, info in found.items()}
    return Layout(topology, changelogs, sorted(inputs), counts, chosen)


async def _refuse(log: GroupLog, app: App, layout: Layout, to: int, noted: bytes | None) -> None:
    """Raises RefusedBySafety, WrongUse."""
    if noted is None:
        await refuse_half_done(log, app.id)
    elif int(noted) != to:
        raise RefusedBySafety(
            f"a repartition of '{app.id}' to {int(noted)} began and did not end; run it with --to {int(noted)}"
        )
    if await is_looked_after(log, app.id):
        raise RefusedBySafety(f"'{app.id}' runs; {FOR_MOVES}")
    most = max(layout.counts.values())
    if most > to:
        raise RefusedBySafety(
            f"'{app.id}' lies by {most} partitions, and partitions are never taken away; give --to more"
        )
    if noted is None and len(set(layout.counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(layout.counts.items()))
        raise RefusedBySafety(
            f"the topics of '{app.id}' have different numbers of partitions ({shown}); grow them alike first"
        )
    odd = sorted(name for name in layout.changelogs.values() if not _is_plain(app, name))
    if odd:
        raise RefusedBySafety(
            f"'{app.id}': {', '.join(odd)} keep the time of their task (windows, timers, joins, expire=) or are local: what is open "
            "in one task may be over in another, so they cannot be moved; go on from new topics, under another id"
        )
    bases = await log.metadata_of(app.id, base.BASE)
    topics = await log.topics(list(layout.changelogs))
    if any(base.of_topic(bases, info) is not None for info in topics.values()):
        raise RefusedBySafety(
            f"the changelogs of '{app.id}' go on from a snapshot (backfill --snapshot-only), which has other tasks"
        )
    for other, kept in (await log.metadata_of_all(DESCRIPTION, "app")).items():
        for topic in layout.inputs if other != app.id else ():
            if (problem := refusal(json.loads(kept), topic)) is not None:
                raise RefusedBySafety(f"'{other}': {problem}")


def _is_plain(app: App, table: str) -> bool:
    found = app.tables[table]
    return type(found) is TableDef and found.spec.expire_ms is None and not found.local


async def _refuse_unread(log: GroupLog, app: App, layout: Layout) -> None:
    """Raises RefusedBySafety: a record that is not processed lies where its key was, and its state would be elsewhere."""
    sources = layout.sources()
    ends = await log.ends(sources, settled=True)  # a producer is answered before its records can be read
    positions, starts = await log.positions(app.id, sources), await log.starts(sources)
    unread = sum(max(0, ends[p] - positions.get(p, starts[p])) for p in sources)
    if unread:
        raise RefusedBySafety(
            f"{counted(unread, 'offset')} of the inputs of '{app.id}' are not processed; stop what produces, start the app, wait for "
            "`orchestrator status` to show none, and stop it again"
        )


async def _fence(log: GroupLog, lease: Lease) -> None:
    """A worker that was stopped and wakes up later commits nothing by the old layout."""
    ids = {record.transactional_id for record in (await log.owners(lease.application)).values()} - {""}
    if ids:
        await log.fence(lease, sorted(ids))


# ---------------------------------------------------------------- what moves


def _moves(session: SparkSession, app_ref: str, url: str, layout: Layout, to: int) -> tuple[list[Any], int]:
    """(what lies in another partition than its key's, how many entries there are). Raises SparkFailed."""
    try:
        from pipeline.spark.differences import last_values
        from pipeline.spark.log_source import log_frame

        job = MoveJob(ship(session, app_ref), layout.topology.numbering(), dict(layout.changelogs), to)
        changes = log_frame(session, url, list(layout.changelogs))
        entries = last_values(changes, "topic", "partition").cache()
        text = msgspec.json.encode(job).decode()
        found = entries.mapInArrow(partial(wrong_places, text), MOVES).collect()
        count = entries.count()
        entries.unpersist()
        return sorted(found), count
    except Exception as error:
        raise failure(session, error) from error


def wrong_places(job_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: entries in, those that lie in another partition than their key's out."""
    import pyarrow as pa

    job = msgspec.json.decode(job_text, type=MoveJob)
    app = job.source.load()
    topology = app.topology(job.numbering)
    by_table = {table: sub for sub in topology.subtopologies for table in sub.tables}
    places = {
        topic: (app.tables[table], routed(app, by_table[table], app.tables[table]))
        for topic, table in job.tables.items()
    }
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            table, owner = places[row["topic"]]
            there = partition_of(owner(table.key_codec.decode(row["key"]), row["key"]), job.to)
            if there != row["partition"]:
                moved = {"here": row["partition"], "there": there, "key": row["key"], "value": row["found"]}
                rows.append({"topic": row["topic"], **moved})
        schema = pa.schema(
            [
                ("topic", pa.string()),
                ("here", pa.int32()),
                ("there", pa.int32()),
                ("key", pa.binary()),
                ("value", pa.binary()),
            ]
        )
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


# ---------------------------------------------------------------- the steps


async def _carry_out(log: GroupLog, held: Held, layout: Layout, to: int, moves: Sequence[Any]) -> None:
    """The note, the partitions, the entries, the end of the note: each step may be done again."""
    application, now_ms = held.lease.application, wall_ms()
    await held.check()
    await log.put_metadata(application, REPARTITION, "to", str(to).encode(), lease=held.lease)
    for name in sorted(layout.counts):
        await log.grow_topic(name, to)
    records: dict[Partition, list[NewRecord]] = {}
    for row in moves:
        key, value = bytes(row["key"]), bytes(row["value"])
        records.setdefault(Partition(row["topic"], row["here"]), []).append(NewRecord(key, None, now_ms))
        records.setdefault(Partition(row["topic"], row["there"]), []).append(NewRecord(key, value, now_ms))
    began = {str(p): end for p, end in (await log.ends(layout.sources(), settled=True)).items()}
    note = AppMetadata(application, REPARTITIONED, "inputs", json.dumps({"to": to, "ends": began}).encode())
    if not await log.seed_positions(held.lease, {}, records, metadata=[note]):
        raise RefusedBySafety(f"'{application}' was begun meanwhile; {FOR_MOVES}")
    await log.put_metadata(application, REPARTITION, "to", None, lease=held.lease)
