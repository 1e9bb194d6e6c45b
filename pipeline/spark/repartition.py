"""`orchestrator repartition MODULE:APP --to N`: the tables of an app lie by more partitions, and nothing is processed again.

One rule: an entry lies where the records of its key come to. What time brings about, where tasks meet, is written first, in one
transaction with the time of each task. From then on an entry that does not lie right for the new count is moved, and nothing else
happens: a deletion where it was and its value where it belongs, in one transaction, which has some thousand of them. So a process that
ends on the way leaves an app that is refused at its start, or as it was, and the same command ends it, with what is left.
The app is stopped and has processed its inputs, or what it has not processed lies by the new number, as where others gave an input more
partitions; stores on disk stay, and replay what moved. What moves is found by `relocation`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.clocks import monotonic_s, wall_ms
from orchestrator.durations import show_duration
from orchestrator.errors import OrchestratorError, RefusedBySafety, WrongUse
from orchestrator.names import counted
from orchestrator.setting import some_time, whole_number
from pipeline.app import App
from pipeline.definitions.entries import keeps_time
from pipeline.definitions.topology import Subtopology, Topology
from pipeline.loading import load
from pipeline.spark.ending import run_to_its_end
from pipeline.spark.forward import Noted, ends_forward
from pipeline.spark.move_job import MoveJob
from pipeline.spark.moves import MOVED, SENT, WRITTEN
from pipeline.spark.relocation import Found, found_moves, shown_due
from pipeline.spark.running import in_thread, spark
from pipeline.spark.session import absolute_log
from pipeline.spark.source import Source
from pipeline.spark.task_times import TaskTimes
from pipeline.spark.unread_inputs import refuse_misplaced, refuse_unread, refused_for, remove_forced
from pipeline.tables.expiry import STREAM_TIME_KEY, stored_time
from pipeline.time.position import stored
from state.log import base, cut_changelogs
from state.log.group_store import AppMetadata, Lease
from state.log.protocol import GroupLog, Intended, NewRecord, Partition, Parts
from workers.commands.cluster import LOCAL, Cluster, add_cluster, cluster_of
from workers.commands.run import state_dir
from workers.commands.show import show_json
from workers.commands.topics import refusal, refuse_too_many
from workers.fleet.held_lease import Held, lease_held, start_refused
from workers.fleet.presence import is_looked_after
from workers.log.logs import log_url, open_log
from workers.prepare import DESCRIPTION, NUMBERING, REPARTITION, REPARTITIONED, refuse_half_done

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_FORWARD_MS = 3_600_000
PARTS = 20  # of a transaction that moves entries: up to 100,000 records, or 80 MiB
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

    def rekeys(self) -> set[str]:
        return {name for name in self.inputs if self.topology.topics[name].kind == "repartition"}

    def has_grown(self, to: int) -> bool:
        """Whether inputs have `to` partitions and all else has the number of before: others than this command have given them more."""
        by_hand = {name for name in self.inputs if self.counts[name] == to} - self.rekeys()
        rest = {count for name, count in self.counts.items() if name not in by_hand}
        return bool(by_hand) and len(rest) == 1 and rest != {to}


def run(argv: list[str]) -> int:
    """Runs `orchestrator repartition`; its exit code. Raises WrongUse, RefusedBySafety."""
    parser = Parser(
        "repartition", "Give the tables and inputs of an app that is stopped more partitions; state is kept."
    )
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--to", type=checked(whole_number), required=True, metavar="N", help="how many partitions")
    parser.add_argument("--plan", action="store_true", help="show what would move, and change nothing")
    parser.add_argument(
        "--forward",
        type=checked(some_time),
        default=MOST_FORWARD_MS,
        metavar="DURATION",
        help="how far a task's time may be brought forward to that of others with which its keys come to share tasks (1h)",
    )
    add_cluster(parser)
    parser.settings("log", "kafka-config", "state-dir")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if ":" not in args.app:
        raise WrongUse(f"'{args.app}' is no MODULE:APP; the code of the app says where a key belongs")
    refuse_too_many("--to", args.to)
    url = log_url(args, load(args.app).id, existing=True)
    root = Path(state_dir(args, url))
    more = {"is_plan": args.plan, "most_forward_ms": args.forward, "cluster": cluster_of(args)}
    note = Noted()
    facts = run_to_its_end(repartition(args.app, url, args.to, root, note=note, **more), note.line)
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
    most_forward_ms: int = MOST_FORWARD_MS,
    cluster: Cluster = LOCAL,
    session: SparkSession | None = None,
    note: Noted | None = None,
) -> dict[str, Any]:
    """Moves what lies wrong for `to` partitions; returns the facts. Raises WrongUse, RefusedBySafety, SparkFailed,
    TimeNotPassed."""
    begun = monotonic_s()
    app, url = load(app_ref), absolute_log(url)
    log = await open_log(url, create=False)
    try:
        noted = await log.metadata(app.id, REPARTITION, "to")
        layout = await _layout(log, app)
        await _refuse(log, app, layout, to, noted)
        before, has_grown = await _before(log, app.id, layout, noted), layout.has_grown(to)
        facts = {"application": app.id, "from": before, "to": to, "topics": sorted(layout.counts)}
        if noted is None and before == to:
            return {**facts, "outcome": "nothing to do", "moved": 0, "entries": 0, "bytes": 0, "seconds": 0.0}
        note = note or Noted()
        note.application, note.may_be = app.id, noted is not None and not is_plan
        async with ends_forward(note), spark(session, f"repartition {app.id}", cluster) as spark_:
            given = spark_, app_ref, url
            is_rest = noted is not None and await _moves_already(log, app.id)
            if is_plan:
                job = await _job(log, app, layout, before, to, is_rest=is_rest)
                look = partial(_moves, *given, job, layout, most_forward_ms, passes=False, is_rest=is_rest)
                found = await in_thread(spark_, look)
                found.close()
                waits = noted is None and not has_grown
                facts["refused_for"] = (await refused_for(log, app.id, layout.sources()) if waits else "") or None
                return {**facts, "outcome": "plan", **_sizes(found), "seconds": round(monotonic_s() - begun, 2)}
            async with (
                start_refused(log, app.id, root, "repartition"),
                lease_held(log, app.id, "repartition") as held,
            ):
                await _fence(log, held.lease)
                is_rest = noted is not None and await _moves_already(log, app.id)
                if noted is None and not has_grown:
                    await refuse_unread(log, app.id, layout.sources())
                elif not is_rest:  # topics may have grown, and the app cannot process anything before it ends
                    await remove_forced(log, layout.inputs)
                    await refuse_misplaced(log, url, app.id, layout.sources(), to, layout.rekeys())
                await log.ends(layout.changes(), settled=True)  # what was committed last can be read from now on
                job = await _job(log, app, layout, before, to, is_rest=is_rest)
                look = partial(_moves, *given, job, layout, most_forward_ms, passes=not is_rest, is_rest=is_rest)
                found = await in_thread(spark_, look)
                paused = monotonic_s()
                try:
                    if noted is None and not has_grown:  # what came while Spark was looking
                        await refuse_unread(log, app.id, layout.sources())
                    await _carry_out(log, url, held, app, layout, job, found, note, is_rest)
                finally:
                    await asyncio.to_thread(found.close)
        sizes = {**_sizes(found), "write_s": round(monotonic_s() - paused, 2)}
        return {**facts, "outcome": "done", **sizes, "seconds": round(monotonic_s() - begun, 2)}
    finally:
        await log.close()


def _sizes(found: Found) -> dict[str, Any]:
    forward = {f"{sub}_{number}": ms for (sub, number), ms in found.times.forward().items()}
    return {
        "entries": found.entries,
        "moved": found.moved,
        "bytes": found.bytes,
        "forward_ms": forward,
        "due": dict(found.due),
        "sent": found.sent,
    }


def _text(facts: Mapping[str, Any]) -> str:
    if facts["outcome"] == "nothing to do":
        return f"{facts['application']}: it lies by {facts['to']} partitions; nothing to do"
    is_plan = facts["outcome"] == "plan"
    text = (
        f"{facts['application']}: {facts['from']} -> {facts['to']} partitions; {facts['moved']} of "
        f"{counted(facts['entries'], 'entry')} {'would move' if is_plan else 'moved'}, {facts['bytes']} bytes, {facts['seconds']:.1f} s"
    )
    if not is_plan:
        text += f", of which {facts['write_s']:.1f} s to write them; start it with `orchestrator run`"
    if facts["forward_ms"]:
        furthest = show_duration(max(facts["forward_ms"].values()))
        were = "would be" if is_plan else "was" if len(facts["forward_ms"]) == 1 else "were"
        text += (
            f"\n{counted(len(facts['forward_ms']), 'task')} {were} brought forward, by {furthest} at most, to "
            f"the time of those with which their keys share tasks; due on the way: {shown_due(facts['due']) or 'nothing'}"
        )
    if not is_plan:
        return text
    text += f"\nthe app is stopped for about that time; grown: {', '.join(facts['topics'])}"
    return text + (f"\nas it is now this is refused: {facts['refused_for']}" if facts["refused_for"] else "")


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
    if noted is None and len(set(layout.counts.values())) > 1 and not layout.has_grown(to):
        shown = ", ".join(f"{name} {count}" for name, count in sorted(layout.counts.items()))
        raise RefusedBySafety(
            f"the topics of '{app.id}' have different numbers of partitions ({shown}); where inputs alone have grown, give their number: "
            f"--to {most}"
        )
    local = sorted(name for name in layout.changelogs.values() if app.tables[name].local)
    if local:
        raise RefusedBySafety(
            f"'{app.id}': {', '.join(local)}: local=True, so no key says where an entry belongs; go on from new topics, under another id"
        )
    bases = await log.metadata_of(app.id, base.BASE)
    topics = await log.topics(list(layout.changelogs))
    if any(base.of_topic(bases, info) is not None for info in topics.values()):
        raise RefusedBySafety(
            f"the changelogs of '{app.id}' go on from a snapshot (backfill --snapshot-only), which has other tasks"
        )
    await cut_changelogs.refuse(log, app.id, topics.values(), f"a repartition of '{app.id}' makes its tables anew")
    for other, kept in (await log.metadata_of_all(DESCRIPTION, "app")).items():
        for topic in layout.inputs if other != app.id else ():
            if (problem := refusal(json.loads(kept), topic)) is not None:
                raise RefusedBySafety(f"'{other}': {problem}")


async def _before(log: GroupLog, application: str, layout: Layout, noted: bytes | None) -> int:
    """The partitions by which the entries lie: topics that one which did not end has grown have more."""
    kept = None if noted is None else await log.metadata(application, REPARTITION, "from")
    return min(layout.counts.values()) if kept is None else int(kept)


async def _moves_already(log: GroupLog, application: str) -> bool:
    """Whether one that did not end has written the first transaction. REPARTITIONED stays, and may be of an earlier one."""
    return await log.metadata(application, REPARTITION, "ends") is not None


async def _fence(log: GroupLog, lease: Lease) -> None:
    """A worker that was stopped and wakes up later commits nothing by the old layout."""
    ids = {record.transactional_id for record in (await log.owners(lease.application)).values()} - {""}
    if ids:
        await log.fence(lease, sorted(ids))


# ---------------------------------------------------------------- what moves


def _moves(
    session: SparkSession,
    app_ref: str,
    url: str,
    job: MoveJob,
    layout: Layout,
    most_forward_ms: int,
    *,
    passes: bool,
    is_rest: bool = False,
) -> Found:
    """Raises SparkFailed, RefusedBySafety, TimeNotPassed."""
    numbers = {
        topic: sub.number
        for sub in layout.subtopologies
        for topic, table in layout.changelogs.items()
        if table in sub.tables
    }
    return found_moves(session, app_ref, url, job, numbers, most_forward_ms, passes=passes, is_rest=is_rest)


async def _job(log: GroupLog, app: App, layout: Layout, before: int, to: int, *, is_rest: bool = False) -> MoveJob:
    ends = {str(p): end for p, end in (await log.ends(layout.sources())).items()}
    kept = await log.metadata(app.id, REPARTITION, "ends") if is_rest else None
    if kept is not None:  # records of a join are numbered from there: those of one key get no number twice
        ends = json.loads(kept)
    counts = {name: info.partitions for name, info in (await log.topics(list(layout.topology.topics))).items()}
    counts |= dict.fromkeys(layout.counts, to)
    return MoveJob(Source(app.id, ""), layout.topology.numbering(), dict(layout.changelogs), before, to, ends, counts)


# ---------------------------------------------------------------- the steps


async def _carry_out(
    log: GroupLog, url: str, held: Held, app: App, layout: Layout, job: MoveJob, found: Found, note: Noted, again: bool
) -> None:
    """The note, the partitions, what time brings about (not `again`), the entries, the end of the note: each may be done again."""
    application, now_ms = held.lease.application, wall_ms()
    await held.check()
    grown = [name for name, count in layout.counts.items() if count != job.to]
    await log.check_rights(application, Intended(grown=grown, seeds=True))
    if not again:  # one that ended, but for its last step, may have left it
        await log.put_metadata(application, REPARTITION, "ends", None, lease=held.lease)
    await log.put_metadata(application, REPARTITION, "from", str(job.before).encode(), lease=held.lease)
    note.may_be = True
    await log.put_metadata(application, REPARTITION, "to", str(job.to).encode(), lease=held.lease)
    for name in sorted(layout.counts):
        await log.grow_topic(name, job.to)
    if not again:
        await refuse_misplaced(log, url, application, (await _grown(log, layout)).sources(), job.to, layout.rekeys())
        await _pass_time(log, held, app, layout, job, found, now_ms)
    await _move(log, held, found, now_ms)
    for name in ("to", "from", "ends"):
        await log.put_metadata(application, REPARTITION, name, None, lease=held.lease)
    note.may_be = False


async def _grown(log: GroupLog, layout: Layout) -> Layout:
    counts = {name: info.partitions for name, info in (await log.topics(list(layout.counts))).items()}
    return replace(layout, counts=counts)


async def _pass_time(
    log: GroupLog, held: Held, app: App, layout: Layout, job: MoveJob, found: Found, now_ms: int
) -> None:
    """All in one transaction, with the note that it took place. Raises RefusedBySafety."""
    application = held.lease.application
    times = {
        Partition(topic, number): [NewRecord(STREAM_TIME_KEY, time, now_ms)]
        for topic, number, time in _times(app, layout, found.times)
    }
    began = {str(p): end for p, end in (await log.ends(layout.sources(), settled=True)).items()}
    notes = [
        AppMetadata(application, REPARTITIONED, "inputs", json.dumps({"to": job.to, "ends": began}).encode()),
        AppMetadata(application, REPARTITION, "ends", json.dumps(job.ends).encode()),
    ]
    parts = partial(found.moves.parts, now_ms, (WRITTEN, SENT))
    await _written(log, held, times, notes, parts)


async def _move(log: GroupLog, held: Held, found: Found, now_ms: int) -> None:
    """Some entries after the other: no transaction is longer than a log allows, or in the way of others, however much moves. Raises
    OrchestratorError where Spark gives less than it has found."""
    listed, records = found.moves.parts(now_ms, (MOVED,)), 0
    while some := await asyncio.to_thread(lambda: list(islice(listed, PARTS))):
        await _written(log, held, {}, (), partial(iter, some))
        records += sum(len(one) for part in some for one in part.values())
    if records != 2 * found.moved:
        raise OrchestratorError(
            f"{records // 2} of {found.moved} entries that move were given by Spark; run the same command again: it moves the others"
        )


async def _written(
    log: GroupLog,
    held: Held,
    records: Mapping[Partition, Sequence[NewRecord]],
    notes: Sequence[AppMetadata],
    parts: Parts,
) -> None:
    if not await log.seed_positions(held.lease, {}, records, metadata=notes, parts=parts):
        raise RefusedBySafety(f"'{held.lease.application}' was begun meanwhile; {FOR_MOVES}")


def _times(app: App, layout: Layout, times: TaskTimes) -> Iterator[tuple[str, int, bytes]]:
    """The time of every task, in each of its tables that keep it."""
    number_of = {table: sub.number for sub in layout.subtopologies for table in sub.tables}
    for topic, table in layout.changelogs.items():
        for number in range(times.to) if keeps_time(app.tables[table]) else ():
            goal = times.goal((number_of[table], number))
            if goal is not None:
                keeps = app.tables[table]
                yield topic, number, stored(goal, keeps.order) if keeps.keeps_time else stored_time(goal[0])
