"""Which topics an application has run on: the log keeps the id of each, and a start on others is refused.

One rule: a topic of the same name is not the same topic. State, positions and changelogs belong together; where one of them
was deleted, or is another application's, going on would count twice or lose what was counted, so the app does not start and
the message says what happened. `orchestrator topics accept` lets it go on. Called before and after `prepare`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pipeline.errors import PipelineError
from state.log.group_store import GroupStore, MetadataKind
from state.log.protocol import GroupLog, Intended, Partition, TopicInfo
from workers.errors import AppRefused
from workers.prepare import NUMBERING, Prepared, refuse_half_done
from workers.same_topics import TOPIC_IDS, is_read, loses, refuse_others, topics_there

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions.topology import Topology

SEEN = MetadataKind("positions-seen")
TAKEN = MetadataKind(
    "positions-taken"
)  # by topic: positions of another program with which a start went on, until committed
_SHOWN = 5


async def check(log: GroupLog, app: App) -> None:
    """Raises AppRefused where the topics, or the positions in them, are not those that the application ran with, and what
    the log says of another program that commits such positions."""
    await log.check_alone(app.id)
    await refuse_half_done(log, app.id)
    numbering = await log.metadata(app.id, NUMBERING, "app")
    try:
        topology = app.topology(json.loads(numbering) if numbering else None)
    except PipelineError:
        return  # `prepare` refuses it with its reason
    kept = await log.metadata_of(app.id, TOPIC_IDS)
    there = await topics_there(log, topology, kept)
    await refuse_others(log, topology, there)
    for name, topic in topology.topics.items():
        if topic.kind == "changelog" and name in there and there[name].kind != "changelog":
            raise AppRefused(
                f"'{app.id}': topic {name} is to be a changelog, and is not compacted: values would be deleted with time; set "
                "its cleanup.policy to compact, or delete it where it is another program's"
            )
        if name in there and (fault := loses(topic.kind, there[name])):
            raise AppRefused(f"'{app.id}': {fault}")
    if not kept and await log.lease(app.id) is None:
        await _check_first_start(log, app, topology, there)
    else:
        await _check_lost_and_gone(log, app, topology, there)
        await _check_set_elsewhere(
            log, app, {name: there[name] for name in kept if name in there and is_read(topology, name)}
        )


async def _check_first_start(log: GroupLog, app: App, topology: Topology, there: Mapping[str, TopicInfo]) -> None:
    """An application that the log does not know has neither state nor positions there, or its facts were deleted."""
    advice = "delete its changelogs, re-key topics and consumer group to begin anew, or choose another id; docs/kafka.md, Refusals, says more"
    internal = [name for name, topic in topology.topics.items() if topic.kind != "plain" and name in there]
    for name in internal:
        partitions = _partitions(there[name])
        if any((await log.written(partitions)).values()):
            owners = [one for one in await log.metadata_of_all(TOPIC_IDS, name) if one != app.id]
            whose = f"belongs to application '{owners[0]}'" if owners else "holds records of an application of this id"
            raise AppRefused(
                f"'{app.id}': topic {name} {whose}, and the log has no facts of '{app.id}' (they may have been deleted): {advice}"
            )
    inputs = [one for name in there if is_read(topology, name) for one in _partitions(there[name])]
    found = await log.positions(app.id, inputs)
    if found:
        raise AppRefused(
            f"'{app.id}': there are committed positions of '{app.id}' in {_named(found)}, and the log has no facts of it: "
            f"another program had a consumer group of that name, or the facts were deleted; {advice}"
        )


async def _check_lost_and_gone(log: GroupLog, app: App, topology: Topology, there: Mapping[str, TopicInfo]) -> None:
    """Raises AppRefused where positions that were seen are gone, or any lies behind what is left of its records: also in a topic
    that was accepted since, of which none was seen yet."""
    seen = await log.metadata_of(app.id, SEEN)
    for name in sorted(there):
        before = {Partition(name, number) for number in json.loads(seen.get(name, b"[]"))}
        asked = before.union(_partitions(there[name]) if is_read(topology, name) else ())
        if not asked:
            continue
        positions = await log.positions(app.id, asked, settled=False)
        if reason := await lost_records(log, app.id, name, positions):
            raise AppRefused(reason)
        gone = before - positions.keys()
        if gone:
            raise AppRefused(
                f"'{app.id}': the committed positions in {_named(gone)} are gone: they expired while the app was down (Kafka: "
                "offsets.retention.minutes), or were deleted; its records would be processed again; set the group's offsets "
                f"with Kafka's tools, or go by the topic's start, and then `orchestrator topics accept {app.id} {name}`"
            )


async def lost_records(log: GroupLog, application: str, name: str, positions: Mapping[Partition, int]) -> str:
    """Why the app cannot go on with these positions in a topic, where one lies behind what the log has kept: all that do, and what to
    set; else ""."""
    lost = await log.lost(application, positions, settled=False)
    if not lost:
        return ""
    strange, _ = await set_elsewhere(log, application, lost, settled=False)
    reasons = []
    if strange:
        moved = "; ".join(
            f"the committed position in {one} to {at}, and it ends at {lost[one]}"
            for one, at in sorted(strange.items())
        )
        reasons.append(
            f"another program has set {moved}: set it to where the app was, or to where it is to go on "
            "(kafka-consumer-groups --reset-offsets)"
        )
    if kept := {one: end for one, end in sorted(lost.items()) if one not in strange}:
        to = ", ".join(f"--to-offset {end}" + (f" for {one}" if len(kept) > 1 else "") for one, end in kept.items())
        reasons.append(
            f"topic {name} lost records: {are_lost(kept, positions)}; what was written since would be taken for what was read, and "
            "tables and outputs count what is lost; to go on from there, set the position of the consumer group "
            f"(kafka-consumer-groups --reset-offsets {to})"
        )
    return (
        f"'{application}': {'; '.join(reasons)}, and then `orchestrator topics accept {application} {name}`; to compute everything "
        f"anew, `orchestrator reset {application}`"
    )


def are_lost(lost: Mapping[Partition, int], positions: Mapping[Partition, int]) -> str:
    """Of each partition where it was, and what is kept."""
    return "; ".join(
        f"of {one}, which was processed up to {positions.get(one)}, the log has kept what is before {end}"
        for one, end in sorted(lost.items())
    )


def lost_while_running(application: str, lost: Mapping[Partition, int], positions: Mapping[Partition, int]) -> str:
    """What a worker ends with."""
    topics = ", ".join(sorted({one.topic for one in lost}))
    return (
        f"records of {topics} that were processed are lost (an unclean election, a restored broker): {are_lost(lost, positions)}; a "
        f"start of {application} names how to go on (`orchestrator topics accept`, or `orchestrator reset`)"
    )


async def _check_set_elsewhere(log: GroupLog, app: App, known: Mapping[str, TopicInfo]) -> None:
    """Raises AppRefused where another program has set positions in the inputs `known`, and that was not accepted."""
    for name, info in sorted(known.items()):
        strange, _ = await set_elsewhere(log, app.id, _partitions(info), settled=False)
        if strange:
            raise AppRefused(
                f"'{app.id}': another program has set the committed positions in {_named(strange)} "
                "(kafka-consumer-groups --reset-offsets, or a consumer of the same group): state and outputs belong to where the "
                f"app was; to go on from where they are now, `orchestrator topics accept {app.id} {name}`; to compute everything "
                f"anew, `orchestrator reset {app.id}`"
            )


async def set_elsewhere(
    log: GroupLog, application: str, partitions: Collection[Partition], *, settled: bool = True
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """The positions of these inputs that another program has set: those of which no start knows, and those with which one
    went on. The latter are to be committed, so that the same ones are noticed when they are set again."""
    found = await log.set_elsewhere(application, partitions, settled=settled)
    if not found:
        return {}, {}
    kept = {name: json.loads(text) for name, text in (await log.metadata_of(application, TAKEN)).items()}
    taken = {one: at for one, at in found.items() if kept.get(one.topic, {}).get(str(one.number)) == at}
    return {one: at for one, at in found.items() if one not in taken}, taken


async def gone(log: GroupStore, application: str, missing: Collection[Partition]) -> list[Partition]:
    """Those of these inputs without a position of which one was seen."""
    if not missing:
        return []
    seen = {name: json.loads(kept) for name, kept in (await log.metadata_of(application, SEEN)).items()}
    return sorted(one for one in missing if one.number in seen.get(one.topic, []))


def _partitions(info: TopicInfo) -> list[Partition]:
    return [Partition(info.name, number) for number in range(info.partitions)]


def _named(partitions: Collection[Partition]) -> str:
    listed = [str(one) for one in sorted(partitions)]
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")


async def keep(log: GroupLog, prepared: Prepared) -> None:
    """Keep which topics the application runs on, those that are new to it; and the positions that it has now."""
    application = prepared.app.id
    kept = await log.metadata_of(application, TOPIC_IDS)
    inputs = _inputs(prepared.topology)
    for name, info in sorted(prepared.topics.items()):
        if name not in kept:
            if name in inputs:
                await _take(log, application, info)
            await log.replace_metadata(application, TOPIC_IDS, name, None, info.topic_id.encode())
    await keep_positions(log, prepared)


async def check_trimming(log: GroupLog, prepared: Prepared) -> None:
    """Raises what the first round of upkeep would raise, a minute later, where what was read of re-keys may not be deleted."""
    topics = [name for name, info in prepared.topics.items() if info.kind == "repartition"]
    await log.check_rights(prepared.app.id, Intended(trimmed=topics))


async def _take(log: GroupLog, application: str, info: TopicInfo) -> None:
    """Go on with the positions in a new or accepted input that another program has set."""
    found = await log.set_elsewhere(application, _partitions(info))
    kept = await log.metadata(application, TAKEN, info.name)
    if found or kept is not None:
        await log.replace_metadata(application, TAKEN, info.name, kept, _text(found) if found else None)


def _text(positions: Mapping[Partition, int]) -> bytes:
    return json.dumps({str(one.number): at for one, at in sorted(positions.items())}).encode()


async def keep_positions(log: GroupLog, prepared: Prepared) -> None:
    """As `keep_seen`, of all inputs."""
    inputs = [one for name in sorted(_inputs(prepared.topology)) for one in _partitions(prepared.topics[name])]
    await keep_seen(log, prepared.app.id, inputs)


def _inputs(topology: Topology) -> set[str]:
    return {name for sub in topology.subtopologies for name in sub.sources}


async def keep_seen(log: GroupLog, application: str, partitions: Collection[Partition]) -> None:
    """Keep which of these inputs have, or had, positions, so that it is noticed when they go; and which of those that were
    taken are not committed yet."""
    found = await log.positions(application, partitions, settled=False)
    seen = await log.metadata_of(application, SEEN)
    for name in sorted({one.topic for one in found}):
        before = seen.get(name)
        numbers = {one.number for one in found if one.topic == name}.union(json.loads(before or b"[]"))
        after = json.dumps(sorted(numbers)).encode()
        if before != after:
            await log.replace_metadata(application, SEEN, name, before, after)
    for name, kept in (await log.metadata_of(application, TAKEN)).items():
        left_of = [one for one in partitions if one.topic == name]
        _, left = await set_elsewhere(log, application, left_of, settled=False)
        await log.replace_metadata(application, TAKEN, name, kept, _text(left) if left else None)


async def accept(log: GroupStore, application: str, topic: str) -> bool:
    """Forget what the topic was; whether anything was known of it. The next start takes it as it is then."""
    known = False
    for kind in (TOPIC_IDS, SEEN):
        if await log.metadata(application, kind, topic) is not None:
            known = True
            await log.put_metadata(application, kind, topic, None)
    return known
