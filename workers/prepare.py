"""Before anything runs: the app's topology is matched with what the log knows, and its topics are there.

One rule: numbers of subtopologies are given once and kept in the log; an app that does not fit is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.model import Task, TaskId
from pipeline.errors import PipelineError
from state.errors import TopicMismatch
from state.log.group_store import GroupStore, MetadataKind
from state.log.protocol import GroupLog, Partition, Retention, TopicInfo, TopicSpec
from workers.errors import AppRefused
from workers.moved_pieces import refuse_beside_others
from workers.others_topics import refuse_written
from workers.same_topics import refuse_others, topics_there

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions.topology import Subtopology, Topology
    from pipeline.time.event_time import EventTime

NUMBERING, DESCRIPTION, BEGUN = (MetadataKind(name) for name in ("numbering", "description", "begun"))
BEGINNING = MetadataKind("beginning")  # by partition of a topic that is read from its end: where the app began
RESET, COPY = MetadataKind("reset", under_lease=True), MetadataKind("copy", under_lease=True)
REPARTITION = MetadataKind("repartition", under_lease=True)  # one that began and did not end: to how many partitions
REPARTITIONED = MetadataKind("repartitioned", under_lease=True)  # where the inputs ended when their layout changed
BACKFILLED = MetadataKind("backfilled", under_lease=True)  # by input of which a backfill read history outside the log


@dataclass(frozen=True)
class Prepared:
    """The app as it runs here: topology with the counts that exist, and the topics' facts."""

    app: App
    topology: Topology
    topics: Mapping[str, TopicInfo]
    begun: Mapping[str, int] = field(
        default_factory=dict
    )  # of topics read from their end: the count at the first start

    @cached_property
    def event_times(self) -> dict[str, EventTime]:
        """How records of each topic get their times."""
        return {topic.topic: topic.event_time for topic in self.app.topics.values()}

    def tasks(self) -> list[Task]:
        """Every task of the app."""
        return [
            Task(TaskId(sub.number, partition), stateful=bool(sub.tables))
            for sub in self.topology.subtopologies
            for partition in range(sub.partitions)
        ]

    def subtopology(self, task: TaskId) -> Subtopology:
        return self.topology.subtopology(task.subtopology)

    def counts(self) -> dict[str, int]:
        return {name: info.partitions for name, info in self.topics.items()}

    def inputs(self, task: TaskId) -> list[Partition]:
        """Its partition of each source; topics that grew one after the other do not all have it."""
        sources = self.subtopology(task).sources
        return [Partition(name, task.partition) for name in sources if task.partition < self.topics[name].partitions]

    def changelog(self, task: TaskId, table: str) -> Partition:
        return Partition(self.app.tables[table].changelog, task.partition)

    def changelogs(self) -> set[Partition]:
        """Those of all tables of all tasks."""
        return {self.changelog(task.id, table) for task in self.tasks() for table in self.subtopology(task.id).tables}


async def prepare(log: GroupLog, app: App, *, runs: bool = True) -> Prepared:
    """Create what is missing, keep the numbering and a description for tools. Raises AppRefused, TopicMismatch. Without `runs`, for what
    runs no task, a version that moves pieces of the one before leaves both as they are: the next start of that one is to find its own."""
    while (fitting := await _fitting(log, app, runs)) is None:
        pass
    topology, compared = fitting
    topics = await log.topics(list(topology.topics))
    prepared = Prepared(app, topology, topics, await _begun(log, app, topology, topics))
    await _described(log, app, topology, compared, runs)
    return prepared


async def refuse_half_done(log: GroupStore, application: str) -> None:
    """Raises AppRefused where a reset, or a copy from another log, began and did not end: some of what belongs together is
    missing."""
    if await log.metadata(application, RESET, "plan") is not None:
        raise AppRefused(
            f"'{application}': a reset of it began and did not end; run `orchestrator reset {application}` again, and start "
            "it then"
        )
    if await log.metadata(application, COPY, "from") is not None:
        raise AppRefused(
            f"'{application}': a copy of it from another log began and did not end; run `orchestrator log copy` again, and "
            "start it then"
        )
    kept = await log.metadata(application, REPARTITION, "to")
    if kept is not None:
        raise AppRefused(
            f"'{application}': a repartition began and did not end; run `orchestrator repartition MODULE:APP --to {kept.decode()}` "
            "again, and start it then"
        )


async def refuse_repartitioned(log: GroupStore, application: str, what: str) -> None:
    """Raises AppRefused where earlier records lie by another number of partitions than the state of their keys does now."""
    if await log.metadata(application, REPARTITIONED, "inputs") is not None:
        raise AppRefused(
            f"'{application}' was repartitioned, so the records before that lie where the state of their keys is not: {what} "
            "cannot read them again; go on from new topics under another id"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The numbers and the description that the log keeps, the topology by those numbers with the counts that topics have, and those of
    its topics that are there."""

    numbers: bytes | None
    described: bytes | None
    topology: Topology
    existing: Mapping[str, TopicInfo]


async def found(log: GroupLog, app: App) -> Found:
    """What is there before a start. Nothing is made. Raises AppRefused where the app does not fit."""
    kept_numbers = await log.metadata(app.id, NUMBERING, "app")
    try:
        topology = app.topology(json.loads(kept_numbers) if kept_numbers else None)
        existing = await topics_there(log, topology)
        counts = {name: existing[name].partitions for name in topology.topics if name in existing}
        if counts:
            topology = topology.with_partitions(counts)
        described = await log.metadata(app.id, DESCRIPTION, "app")
        if described:
            app.check_schema(json.loads(described))
            await _refuse_other_numbers(log, app, json.loads(described), existing)
    except PipelineError as error:
        # Where a repartition has grown some topics and not all, the error's own advice would lose the state.
        await refuse_half_done(log, app.id)
        raise AppRefused(str(error)) from error
    await refuse_others(log, topology, existing)
    await refuse_written(log, topology, DESCRIPTION)
    return Found(kept_numbers, described, topology, existing)


async def _refuse_other_numbers(
    log: GroupLog, app: App, described: Mapping[str, object], existing: Mapping[str, TopicInfo]
) -> None:
    """Raises AppRefused for a topic with records that would be read as other numbers than they are."""
    from pipeline.definitions.describe import other_numbers  # commands without an app need none of it

    for topic, why in other_numbers(app, described).items():
        there = [Partition(topic, number) for number in range(existing[topic].partitions)] if topic in existing else []
        if await log.starts(there) != await log.ends(there):
            raise AppRefused(why)


async def _fitting(log: GroupLog, app: App, runs: bool) -> tuple[Topology, bytes | None] | None:
    """The topology with the counts that topics have, and the description that it was compared with; topics that were missing are there,
    and the log keeps the numbers, which no app that is refused leaves there. None where another process has made one of these topics,
    which has grown, or numbered a version of its own, since this one looked: look again. What is new is then numbered after what that
    one's version has."""
    there = await found(log, app)
    topology = there.topology
    moves = await _moves(log, app, topology, there.described, runs)
    for name, topic in sorted(topology.topics.items()):
        if name not in there.existing:
            try:
                kept = Retention(topic.retention_ms, topic.retention_bytes)
                await log.create_topic(TopicSpec(name, topic.partitions, topic.kind, kept))
            except TopicMismatch:
                return None
    numbering = json.dumps(topology.numbering(), sort_keys=True).encode()
    is_kept = numbering == there.numbers or (moves and not runs)
    if not is_kept and not await log.replace_metadata(app.id, NUMBERING, "app", there.numbers, numbering):
        return None
    return topology, there.described


async def _moves(log: GroupStore, app: App, topology: Topology, described: bytes | None, runs: bool) -> bool:
    """Whether this version moves pieces of the one that is described. Raises AppRefused where it is to run beside that one."""
    from pipeline.definitions.describe import moved  # commands without an app need none of it

    def than_in(kept: bytes | None) -> list[str]:
        return moved(topology, json.loads(kept)) if kept else []

    async def than_now() -> list[str]:
        return than_in(await log.metadata(app.id, DESCRIPTION, "app"))

    moves = than_in(described)
    if runs:
        await refuse_beside_others(log, app.id, moves, than_now)
    return bool(moves)


async def _described(log: GroupStore, app: App, topology: Topology, compared: bytes | None, runs: bool) -> None:
    """What tools without the code need, of this version and of those before it. `compared`: the description that this version does not
    run beside; one that came meanwhile is of a version that began at the same moment."""
    from pipeline.definitions.describe import beside  # commands without an app need none of it

    while True:
        kept = await log.metadata(app.id, DESCRIPTION, "app")
        if kept != compared or not runs:
            if await _moves(log, app, topology, kept, runs) and not runs:
                return
            compared = kept
        before = json.loads(kept) if kept else {}
        now = app.describe(topology, before)
        description = json.dumps(now if runs else beside(now, before), sort_keys=True).encode()
        if description == kept or await log.replace_metadata(app.id, DESCRIPTION, "app", kept, description):
            return


async def _begun(log: GroupStore, app: App, topology: Topology, topics: Mapping[str, TopicInfo]) -> dict[str, int]:
    """How many partitions a topic had when the app first saw it: "from the end on" means those. One that comes later
    begins within the app's life, and what was written to it before its task ran is not to be lost."""
    found: dict[str, int] = {}
    for name, info in topics.items():
        if topology.topics[name].start == "end":
            await log.replace_metadata(app.id, BEGUN, info.topic_id, None, str(info.partitions).encode())
            kept = await log.metadata(app.id, BEGUN, info.topic_id)
            found[name] = int(kept) if kept else info.partitions
    return found


def _beginning_key(prepared: Prepared, partition: Partition) -> str:
    return f"{prepared.topics[partition.topic].topic_id}-{partition.number}"


async def beginning(log: GroupStore, prepared: Prepared, partition: Partition) -> int | None:
    """Where the app began to read a partition that it reads from the end on; None where that was never recorded."""
    kept = await log.metadata(prepared.app.id, BEGINNING, _beginning_key(prepared, partition))
    return None if kept is None else int(kept)


async def beginnings(log: GroupStore, application: str, topics: Iterable[TopicInfo]) -> dict[Partition, int]:
    """The same of all partitions of these topics of which it was recorded, for tools without the app's code."""
    kept = await log.metadata_of(application, BEGINNING)
    places = {f"{info.topic_id}-{n}": Partition(info.name, n) for info in topics for n in range(info.partitions)}
    return {places[key]: int(position) for key, position in kept.items() if key in places}


async def begin_at(log: GroupStore, prepared: Prepared, partition: Partition, position: int) -> int:
    """Records where the app begins; returns what was recorded first. So a process that ends before its first commit leaves
    out nothing that came meanwhile, and an audit knows what was to be read."""
    key = _beginning_key(prepared, partition)
    await log.replace_metadata(prepared.app.id, BEGINNING, key, None, str(position).encode())
    kept = await beginning(log, prepared, partition)
    return position if kept is None else kept


def from_the_end(prepared: Prepared, partition: Partition) -> bool:
    """Whether the app reads this partition from the end that it had at the first start."""
    topic = prepared.topology.topics[partition.topic]
    return topic.start == "end" and partition.number < prepared.begun[partition.topic]
