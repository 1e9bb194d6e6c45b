"""`orchestrator verify` and `orchestrator audit`: Spark computes everything again, and every key and every record is compared.

One rule: what cannot be compared is a check that failed, never one that is left out. The comparison is made at one moment of
the log (`moment`), which is stated; an audit looks into the stores of the instances as well, each compared with its changelog
up to where it has it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.clocks import wall_ms
from pipeline.app import App
from pipeline.files.shape import Shape
from pipeline.loading import load
from pipeline.spark.backfill import NOTHING, refuse_outside
from pipeline.spark.bad_rows import BadRecords
from pipeline.spark.comparing import Base, Compared, Comparing, not_whole
from pipeline.spark.engine import Engine, checked_history, refuse_without_history
from pipeline.spark.inputs import MEMORY_BYTES, NO_SHAPE, History, Inputs, Say, external
from pipeline.spark.live_stores import Copy, copies
from pipeline.spark.log_source import InputsRemoved
from pipeline.spark.moment import Moment, moment_of, removed_since
from pipeline.spark.running import in_thread, spark
from pipeline.spark.session import absolute_log
from pipeline.spark.shown_differences import Reading, first, write
from pipeline.spark.stage_order import messages_of, of_batches
from pipeline.spark.under_way import MOST, UnderWay, read_all
from state import manifest
from state.errors import SnapshotUnusable
from state.log import base
from state.log.group_store import GroupStore
from state.log.protocol import GroupLog
from state.scratch import scratch
from workers.commands.cluster import LOCAL, Cluster
from workers.commands.show import DIFFERENCES
from workers.fleet.client import Client, description
from workers.log.logs import open_log
from workers.missing_inputs import prepare_and_say
from workers.prepare import Prepared, refuse_half_done, refuse_repartitioned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Check = dict[str, Any]
ALL_PROCESSED = "re-keyed records are all processed"
UNDER_WAY = "re-keyed records that wait are what Spark computes"


@dataclass(frozen=True)
class Stores:
    """Where the stores of the instances are: the group's client, made of the log, and the application's folder on this machine."""

    client: Callable[[GroupLog], Client]
    state: Path


@dataclass(frozen=True)
class Wanted:
    """What is looked at, and how much of it is shown. `stores` None: the log alone; `out`: all differences, in a Parquet file."""

    snapshots: Path | None = None
    history: History = field(default_factory=dict)
    shape: Shape = NO_SHAPE
    allow_outside: bool = False
    memory_bytes: int = MEMORY_BYTES
    stores: Stores | None = None
    limit: int = DIFFERENCES
    out: Path | None = None
    bad: BadRecords | None = None


async def verify(
    app_ref: str,
    log_url: str,
    *,
    cluster: Cluster = LOCAL,
    snapshots: Path | None = None,
    history: History = NOTHING,
    say: Say,
    allow_outside: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    shape: Shape = NO_SHAPE,
    bad: BadRecords | None = None,
    session: SparkSession | None = None,
) -> list[Check]:
    """Checks as {"check", "expected", "found", "ok"}: tables by key, outputs by record. Records that nothing has processed yet
    are a check that failed.

    `snapshots` is where the base of the changelogs is, for an app that has one. Raises BaseMissing.
    """
    wanted = Wanted(snapshots, history, shape, allow_outside, memory_bytes, limit=1, bad=bad)
    facts = await audit(app_ref, log_url, wanted, cluster=cluster, say=say, session=session)
    behind = _check("inputs are processed to their ends", 0, facts["unread"])
    checks: list[Check] = [behind, *facts["checks"]]
    for check in checks:
        for shown in check.pop("differences", [])[:1]:
            place = {name: shown[name] for name in ("key", "entry", "start_ms", "end_ms") if name in shown}
            check["example"] = {**place, "wanted": shown["expected"], "found": shown["found"]}
    return checks


async def audit(
    app_ref: str,
    log_url: str,
    wanted: Wanted,
    *,
    cluster: Cluster = LOCAL,
    say: Say,
    session: SparkSession | None = None,
) -> dict[str, Any]:
    """The facts of cli.md: `checks` with their differences, the `positions` up to which all was compared, and how many offsets
    of the inputs lie behind them (`unread`). Raises BaseMissing."""
    app = load(app_ref)
    refuse_outside(app, wanted.allow_outside, say)
    chosen = checked_history(app, wanted.history)
    log_url = absolute_log(log_url)
    log = await open_log(log_url, create=False)
    try:
        described = await description(log, app.id)
        await refuse_half_done(log, app.id)
        await refuse_repartitioned(log, app.id, "an audit")
        prepared = await prepare_and_say(log, app, log_url, say, runs=False)
        await refuse_without_history(log, prepared, chosen)
        bases = await _bases(log, prepared, wanted.snapshots)
        moment = await moment_of(log, prepared)
        checks = _before(moment, prepared)
        facts: dict[str, Any] = {
            "application": app.id,
            "positions": {str(p): at for p, at in sorted(moment.until.items())},
            "unread": moment.unread,
            "checks": checks,
        }
        under_way = await _under_way(log_url, app, moment, checks)
        if not all(check["ok"] for check in checks):
            say("no table and no output was compared, as a check before that failed")
            return facts
        waiting = sum(rows.total() for rows in under_way.values())
        facts["unread"] += waiting
        inputs = Inputs(
            *(app_ref, prepared, log_url, log.log_id, moment.until, chosen, wanted.memory_bytes, wanted.shape),
            begins=moment.begins,
            bad=wanted.bad,
            under_way=under_way,
        )
        async with (
            _stores(log, prepared, wanted.stores) as stores,
            spark(session, f"audit {app.id}", cluster, say) as spark_,
        ):
            if wanted.stores is not None and stores == ([], []) and prepared.app.tables:
                say(
                    f"warning: no stores of '{app.id}' were found, as no instance runs and {wanted.stores.state} has none: changelogs and outputs "
                    "alone are compared; --state-dir names another folder"
                )
            with scratch(Path(tempfile.gettempdir()), "stream-orchestrator-audit-") as work:
                engine = Engine(spark_, inputs, work / "work", None, wall_ms())
                try:
                    computed = await in_thread(spark_, engine.run, say, rows=engine.rows, waits=engine.waits)
                except InputsRemoved as error:  # since the moment was looked for
                    say(f"no table and no output was compared: {error}")
                    checks[0] = _check(checks[0]["check"], 0, error.count)
                    return facts
                if under_way:
                    checks.append(_check(UNDER_WAY, waiting, waiting - computed.strangers))
                comparing = Comparing(spark_, inputs, moment, bases, computed, work, say)
                compared = await _whole_alone(log, moment, await in_thread(spark_, comparing.run, stores))
                reading = Reading(described)
                checks += await in_thread(spark_, _checks, spark_, compared, reading, wanted)
                if wanted.out is not None:
                    rows = [(one.text, one.subject, one.found.rows) for one in compared]
                    facts["written"] = await in_thread(spark_, write, spark_, wanted.out, rows, reading)
        return facts
    finally:
        await log.close()


def _check(what: str, expected: Any, found: Any, ok: bool | None = None, **more: Any) -> Check:
    is_ok = expected == found if ok is None else ok
    name = " ".join(what.split())  # RocksDB says in several lines why a store cannot be read
    facts = {"check": name, "expected": expected, "found": found, "ok": is_ok}
    return {**facts, "differ": 0 if is_ok else abs(expected - found), "differences": [], **more}


def _before(moment: Moment, prepared: Prepared) -> list[Check]:
    """Whether there is anything to compare with. What waits in re-keys is taken out of what is computed, but for messages of joins, which go
    to and fro, and for what would not fit into memory."""
    most = 0 if list(messages_of(prepared.app)) else MOST
    waiting = sum(end - start for start, end in moment.under_way.values())
    checks = [
        _check(f"inputs are whole in the log{_compacted(prepared)}", 0, moment.gone),
        _check(ALL_PROCESSED, 0, 0 if waiting <= most else waiting),
    ]
    if moment.unknown:
        names = ", ".join(map(str, moment.unknown))
        checks.append(_check(f"where the app began in {names} is known: an earlier version did not record it", 0, 1))
    return checks


async def _under_way(log_url: str, app: App, moment: Moment, checks: list[Check]) -> UnderWay:
    """What waits in re-keys. Where it is too much to be held the check of it fails."""
    if not all(check["ok"] for check in checks):
        return {}
    found = await asyncio.to_thread(read_all, log_url, moment.under_way, of_batches(app))
    if found is not None:
        return found
    failed = _check(ALL_PROCESSED, 0, sum(end - start for start, end in moment.under_way.values()))
    checks[:] = [failed if check["check"] == ALL_PROCESSED else check for check in checks]
    return {}


def _compacted(prepared: Prepared) -> str:
    """Offsets do not say what compaction has removed: those of Kafka have gaps for other reasons."""
    names = [name for name in external(prepared) if prepared.topics[name].kind == "changelog"]
    return f", but for earlier values of keys that compaction may have removed of {', '.join(names)}" if names else ""


async def _whole_alone(log: GroupLog, moment: Moment, compared: Sequence[Compared]) -> list[Compared]:
    """What retention has removed of outputs while they were computed and compared is not lost."""
    of_topics = {one.subject.name for one in compared if not (one.ok or one.subject.is_table)}
    gone = await removed_since(log, moment, of_topics)
    found = []
    for one in compared:
        lost = 0 if one.ok or one.subject.is_table else gone[one.subject.name]
        found.append(not_whole(one.subject.name, lost) if lost else one)
    return found


def _checks(session: SparkSession, compared: Sequence[Compared], reading: Reading, wanted: Wanted) -> list[Check]:
    found: list[Check] = []
    for one in compared:
        more: dict[str, Any] = {**one.more}
        if one.ok or one.found.differ:  # of what could not be read no difference is known: it counts as one
            more = {"differ": one.found.differ, **more}
        if one.found.left_out:
            more["left_out"] = one.found.left_out
        if one.found.rows:
            rows = first(session, one.subject, one.found.rows, wanted.limit)
            more["differences"] = [reading.shown(one.subject, row) for row in rows]
        found.append(_check(one.text, one.found.expected, one.found.found, one.ok, **more))
    return found


@asynccontextmanager
async def _stores(
    log: GroupLog, prepared: Prepared, stores: Stores | None
) -> AsyncIterator[tuple[list[Copy], list[str]] | None]:
    if stores is None:
        yield None
        return
    client = stores.client(log)
    try:
        async with copies(log, prepared, client, stores.state) as found:
            yield found
    finally:
        await client.close()


async def _bases(log: GroupStore, prepared: Prepared, snapshots: Path | None) -> Base:
    kept_bases = await log.metadata_of(prepared.app.id, base.BASE)
    kept = {topic: base.of_topic(kept_bases, info) for topic, info in prepared.topics.items()}
    found = {topic: one for topic, one in kept.items() if one is not None}
    for topic, one in found.items():
        if snapshots is None:
            raise base.missing(f"the changelog {topic}", one, "no folder of snapshots is named")
        try:
            manifest.load(snapshots, one.snapshot)
        except SnapshotUnusable as error:
            raise base.missing(f"the changelog {topic}", one, str(error), snapshots) from None
    return Base(snapshots or Path(), found)
