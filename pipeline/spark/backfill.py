"""`orchestrator backfill`: state and outputs computed from history on Spark, so that live instances begin where it ends.

One rule: nothing of a backfill is anywhere until one transaction of the log holds all of it: outputs, the final values
of every table in their changelogs, and the positions where live processing goes on. The snapshot is published after it:
whatever happens in between, the changelogs are whole. With `snapshot_only` the final values are in the snapshot alone:
then it is published before, and the transaction names it as the base of the changelogs (`state.log.base`).
The coordinator's lease is held meanwhile, so no instance is given a task. One cut holds for all inputs; the position in
a re-key topic is its end when the backfill starts.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.clocks import monotonic_s, wall_ms
from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.names import counted
from pipeline.app import App
from pipeline.files.shape import Shape
from pipeline.loading import load
from pipeline.spark import half_made, kept_work
from pipeline.spark.bad_rows import BadRecords
from pipeline.spark.engine import Engine, checked_history, notes_of
from pipeline.spark.final_records import Part, final_values, keep_outputs, outputs
from pipeline.spark.inputs import MEMORY_BYTES, NO_SHAPE, Computed, History, Inputs, Say, followed
from pipeline.spark.moment import first_begins, sources
from pipeline.spark.remarks import remarks
from pipeline.spark.running import in_thread, spark
from pipeline.spark.session import absolute_log
from pipeline.spark.spreading import portions, spread
from state import manifest
from state.disk_full import writing_to
from state.errors import LeaseLost, StateError
from state.history import begin as begin_history
from state.log import base
from state.log.base import Base
from state.log.called_off import to_its_end
from state.log.group_store import AppMetadata
from state.log.protocol import GroupLog, Log, Partition
from workers.commands.cluster import LOCAL, Cluster
from workers.commands.consume import has_records
from workers.fleet.held_lease import Held, lease_held
from workers.log.logs import open_log
from workers.missing_inputs import prepare_and_say
from workers.prepare import Prepared, begin_at, from_the_end, refuse_half_done

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING: History = MappingProxyType({})


async def backfill(
    app_ref: str,
    log_url: str,
    snapshots: Path,
    *,
    cluster: Cluster = LOCAL,
    history: History = NOTHING,
    say: Say,
    allow_outside: bool = False,
    snapshot_only: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    shape: Shape = NO_SHAPE,
    bad: BadRecords | None = None,
    session: SparkSession | None = None,
) -> dict[str, Any]:
    """Compute everything up to the ends of the inputs, and hand it to the log; returns the facts.

    `session` is used instead of one of our own where given. Raises RefusedBySafety (exit code 3) for an app that has
    committed positions, is running, or is outside of the promise; nothing is written then.
    """
    clock = Clock()
    app = load(app_ref)
    refuse_outside(app, allow_outside, say)
    chosen = checked_history(app, history)
    log_url = absolute_log(log_url)
    log = await open_log(log_url, create=bool(history))
    try:
        await log.check_alone(app.id)  # `run` refuses the app while another program may commit over the positions
        await refuse_half_done(log, app.id)
        if not chosen:  # before topics are made: one of them may be mistyped
            _refuse_empty(app, await log.ends(await _inputs_there(log, app)), 0)
        prepared = await prepare_and_say(log, app, log_url, say)
        await refuse_used(log, app.id, sources(prepared))
        async with lease_held(log, app.id, "backfill", is_patient=True) as held:
            await _refuse_written(log, prepared)
            until = await log.ends(sources(prepared))  # one moment for the inputs of all subtopologies
            begins = await first_begins(log, prepared, until)
            inputs = Inputs(
                *(app_ref, prepared, log_url, log.log_id, until, chosen, memory_bytes, shape),
                follow=True,
                begins=begins,
                bad=bad,
            )
            clock.lap("checks")
            async with spark(session, f"backfill {app.id}", cluster, say) as spark_:
                clock.lap("start of Spark")
                run = Run(spark_, log, held, inputs, snapshots.absolute(), snapshot_only, clock, say)
                return await run.run()
    finally:
        await log.close()


class NotPublished(StateError):
    """All is committed, and the snapshot is not there."""


class Clock:
    """Seconds per step."""

    def __init__(self) -> None:
        self._since = self._begun = monotonic_s()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = monotonic_s()
        self.seconds[name] = round(now - self._since, 2)
        self._since = now

    def total(self) -> float:
        return round(monotonic_s() - self._begun, 2)


class Run:
    """One backfill, from what was checked on: computes, seeds the log, publishes the snapshot."""

    def __init__(
        self,
        session: SparkSession,
        log: GroupLog,
        held: Held,
        inputs: Inputs,
        root: Path,
        snapshot_only: bool,
        clock: Clock,
        say: Say,
    ) -> None:
        self._session, self._log, self._held, self._inputs = session, log, held, inputs
        self._prepared = inputs.prepared
        self._only = snapshot_only
        self._clock, self._say = clock, say
        self._now_ms = wall_ms()
        self._root = root
        self._name = f"{datetime.fromtimestamp(self._now_ms / 1000, UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self._history = secrets.token_hex(8)
        self._positions: Mapping[Partition, int] = inputs.until  # what is committed
        self._keep = False  # the snapshot, whatever happens from now on

    @property
    def _snapshot(self) -> Path:
        return self._root / self._name

    async def run(self) -> dict[str, Any]:
        for left in half_made.clean(self._root):
            self._say(f"removed what a backfill or snapshot that was killed has left in {left}")
        looked = partial(kept_work.sum_of, self._session, self._inputs, snapshot_only=self._only)
        made_of = await in_thread(self._session, looked)  # Spark may have jobs for that
        kept = await asyncio.to_thread(kept_work.find, self._root, self._inputs, made_of, self._say)
        if kept is not None:
            self._inputs, self._name, self._now_ms = kept.inputs(self._inputs), kept.name, kept.time_ms
            self._say(f"goes on with what a backfill before has computed, in snapshot {self._name}")
        scratch, is_left = half_made.begin(self._root, self._name), False
        try:
            computed = kept.computed(scratch.path) if kept is not None else await self._compute(scratch.path)
            self._clock.lap("processors")
            self._clock.seconds.update(computed.seconds)
            _refuse_empty(self._prepared.app, self._inputs.until, computed.total("records_in"))
            facts = (self._inputs, computed, made_of, self._name, self._now_ms)
            try:
                if not self._only:
                    kept_work.note(scratch, *facts)
                await self._write(computed)
            except BaseException as error:  # also a command that is ended, and executors that are lost
                if not self._only and kept_work.is_of_use(error, self._held):
                    is_left = kept_work.keep(scratch, *facts, self._say)
                    self._keep = self._keep or is_left
                raise
            kept_work.forget(scratch)
            await to_its_end(self._finish(computed))  # the log has it all
        finally:
            if not is_left:
                scratch.remove()
            if not self._keep:
                shutil.rmtree(self._snapshot, ignore_errors=True)
        return self._facts(computed)

    async def _compute(self, work: Path) -> Computed:
        engine = Engine(self._session, self._inputs, work, self._snapshot, self._now_ms, base=self._only)
        computed: Computed = await in_thread(self._session, engine.run, self._say, rows=engine.rows, waits=engine.waits)
        for remark in remarks(computed, self._inputs, self._now_ms):
            self._say(remark)
        return computed

    async def _write(self, computed: Computed) -> None:
        await self._begin_history()
        self._positions = await self._after_own(computed.placed())
        for partition, at in self._inputs.begins.items():  # before the commit: what fails behind it leaves them unknown
            if from_the_end(self._prepared, partition):
                await begin_at(self._log, self._prepared, partition, at)
        if self._only:
            with writing_to(self._root, "nothing is committed; free some space, and run it again"):
                await asyncio.to_thread(self._publish, computed)
        await self._seed(computed)

    async def _finish(self, computed: Computed) -> None:
        self._held.done()
        self._clock.lap("log")
        entries = sum(computed.sums("entries").values())
        if self._only:
            self._say(
                f"the log has the outputs; {counted(entries, 'entry')} of tables {'is' if entries == 1 else 'are'} in snapshot {self._name} alone, keep it"
            )
        else:
            self._say(f"the log has {counted(entries, 'entry')} of tables, and the outputs")
        try:
            keep_outputs(computed, self._snapshot)
            if not self._only:
                await asyncio.to_thread(self._publish, computed)
        except (OSError, StateError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise NotPublished(
                f"the backfill is in the log, whole, but not all of its snapshot is in {self._root} ({why}): do not run "
                f"it again; free some space, then `orchestrator snapshot {self._prepared.app.id} --snapshots {self._root}` makes another"
            ) from error
        self._keep = True
        self._clock.lap("snapshot")

    async def _begin_history(self) -> None:
        """What is written now is of this term: a log that goes on without it is another history."""
        await begin_history(self._log, self._held.lease, self._prepared.changelogs(), self._history)

    async def _seed(self, computed: Computed) -> None:
        """Everything in one transaction. Raises RefusedBySafety or LeaseLost where the app has begun meanwhile."""
        application = self._prepared.app.id
        metadata = [*notes_of(self._inputs), *(self._metadata() if self._only else [])]
        marker = [base.marker(self._now_ms)]
        markers = dict.fromkeys(self._prepared.changelogs(), marker) if self._only else {}
        listed = portions(computed, self._prepared, tables=not self._only)
        await self._held.check()
        self._keep = self._only  # a commit whose answer never comes may have made it a base
        try:
            seeded = await self._log.seed_positions(
                *(self._held.lease, self._positions, markers),
                metadata=metadata,
                parts=partial(self._parts, computed),
                spread=spread(self._session, listed),
            )
        except LeaseLost:
            self._keep = False
            raise
        except asyncio.CancelledError:
            if self._only:
                with suppress(StateError):  # kept where that is not known
                    self._keep = bool(await self._log.positions(application, self._positions))
            raise
        if not seeded:
            self._keep = False
            raise RefusedBySafety(
                f"'{application}' committed positions while backfill was at work; the backfill wrote nothing; "
                "stop its instances"
            )

    async def _after_own(self, sent: Mapping[Partition, int]) -> dict[Partition, int]:
        """Where live processing goes on: what the app has sent into its own inputs is processed, too. Raises
        RefusedBySafety where another producer wrote into those, because one position cannot leave that out."""
        until = self._inputs.until
        own = {p for p in until if p.topic in followed(self._inputs)}
        # also one whose transaction is still open: what it wrote lies before what is written here
        moved = sorted(p for p, end in (await self._log.written(sorted(own))).items() if end != until[p])
        if moved:
            raise RefusedBySafety(
                f"another producer wrote to {moved[0]} while backfill was at work, and '{self._prepared.app.id}' writes to it "
                "itself; the backfill wrote nothing; stop other producers of that topic and run it again"
            )
        return {p: end + sent.get(p, 0) * (p in own) for p, end in until.items()}

    def _parts(self, computed: Computed) -> Iterator[Part]:
        """The records of `portions`. Readers of outputs wait for those behind the first of them, so they come last."""
        if not self._only:
            yield from final_values(computed, self._prepared)
        yield from outputs(computed)

    def _changelogs(self) -> list[str]:
        prepared = self._prepared
        return [prepared.app.tables[table].changelog for sub in prepared.topology.subtopologies for table in sub.tables]

    def _metadata(self) -> list[AppMetadata]:
        """That the changelogs go on from this snapshot."""
        topics = self._prepared.topics
        bases = {topic: Base(self._name, topics[topic].topic_id) for topic in self._changelogs()}
        return [AppMetadata(self._prepared.app.id, base.BASE, topic, base.encode(one)) for topic, one in bases.items()]

    def _publish(self, computed: Computed) -> None:
        until = sorted(self._positions.items())
        manifest.publish(
            self._root,
            manifest.SnapshotManifest(
                snapshot=self._name,
                application=self._prepared.app.id,
                log_id=self._inputs.log_id,
                time_ms=self._now_ms,
                partitions={topic: self._prepared.topics[topic].partitions for topic in self._changelogs()},
                scopes={task: facts.scope_sum for task, facts in computed.tasks.items() if facts.scope_sum},
                positions=tuple(manifest.SourcePosition(p.topic, p.number, at) for p, at in until),
                base=self._only,
                history=self._history,
            ),
        )

    def _profile(self, computed: Computed) -> dict[str, float]:
        """Seconds by stage of the way of a record; of all slots together, but for what the driver writes."""
        spent = computed.spent()
        written = sum(self._clock.seconds.get(lap, 0.0) for lap in ("log", "snapshot"))
        return {**spent, "write": round(spent.get("write", 0.0) + written, 3)}

    def _facts(self, computed: Computed) -> dict[str, Any]:
        until = self._inputs.until
        return {
            "application": self._prepared.app.id,
            "snapshot": self._name,
            "snapshots": str(self._root),
            "snapshot_only": self._only,
            "tasks": len(computed.tasks),
            "records_in": computed.total("records_in"),
            "inputs": sum(until.values()),
            "outputs": computed.sums("outputs"),
            "rekeyed": computed.sums("rekeyed"),
            "bad_rows": sum(computed.bad.values()),
            "skipped": computed.total("skipped"),
            "dead_lettered": computed.total("dead_lettered"),
            "tables": computed.sums("entries"),
            "skewed": [msgspec.structs.asdict(one) for one in computed.skewed],
            "spilled_tables": computed.total("spilled"),
            "positions": {str(p): position for p, position in sorted(self._positions.items())},
            "profile": self._profile(computed),
            "seconds": {**self._clock.seconds, "total": self._clock.total()},
        }


# ---------------------------------------------------------------- before


def refuse_outside(app: App, allowed: bool, say: Say) -> None:
    """Apps whose answer may depend on more than their records. Raises RefusedBySafety."""
    if app.globals:
        names = ", ".join(repr(name) for name in sorted(app.globals))
        raise RefusedBySafety(
            f"'{app.id}' has global tables ({names}), whose records have no place in the order of its tasks: there is no one "
            "answer that history could give; use app.table_of(...) where the partitions are equal"
        )
    stamped = sorted(name for name, topic in app.topics.items() if topic.event_time.timestamp is not None)
    if stamped:
        raise RefusedBySafety(
            f"'{app.id}' takes the times of {', '.join(map(repr, stamped))} from their values (timestamp=), and history is "
            "ordered by the times of the log; produce the records with these times"
        )
    reasons = [f"resource '{name}'" for name in sorted(app.resources)]
    reasons += [f"table '{name}' (local=True)" for name, table in sorted(app.tables.items()) if table.local]
    if not reasons:
        return
    warning = f"'{app.id}' uses {', '.join(reasons)}: Spark may give another answer than live instances"
    if not allowed:
        raise RefusedBySafety(f"{warning}; --allow-outside runs it all the same")
    say(f"{warning}; it runs all the same, as --allow-outside says")


async def refuse_used(log: Log, application: str, inputs: Collection[Partition]) -> None:
    """An app that has begun must go on from where it is. Raises RefusedBySafety."""
    committed = await log.positions(application, inputs)
    if committed:
        raise RefusedBySafety(
            f"'{application}' has processed records already ({len(committed)} committed positions); backfill is for an app "
            "that has not begun: give it another id, or another log"
        )


async def _refuse_written(log: Log, prepared: Prepared) -> None:
    """What a backfill that failed has written to Kafka lies there, aborted: that is no record. Under the lease, for a transaction that it
    has left open is ended by who takes that."""
    written = await log.written(prepared.changelogs())
    full = sorted(partition for partition, end in written.items() if end > 0)
    for partition in full:
        if await has_records(log, partition):
            raise RefusedBySafety(
                f"the changelog {partition} of '{prepared.app.id}' is not empty, though no position is committed; "
                f"backfill needs empty changelogs: `orchestrator reset {prepared.app.id}` deletes them, or give the app another id, or another log"
            )


async def _inputs_there(log: Log, app: App) -> list[Partition]:
    """The partitions of those inputs, and re-keys, that the log has."""
    read = sorted({name for sub in app.topology().subtopologies for name in sub.sources})
    there = (await log.topics(read)).values()
    return [Partition(info.name, number) for info in there for number in range(info.partitions)]


def _refuse_empty(app: App, until: Mapping[Partition, int], records: int) -> None:
    """Positions are committed once: those of nothing would stand in the way of the history that was forgotten."""
    if not records and not any(until.values()):
        raise WrongUse(
            f"there is nothing to read: the inputs of '{app.id}' are empty in the log and no record of history was given; "
            "name history files as TOPIC=PATTERN"
        )


# ---------------------------------------------------------------- after
