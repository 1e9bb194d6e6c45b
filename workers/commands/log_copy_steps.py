"""The steps of `orchestrator log copy`, each of which may be done again: topics, records, what is known, positions.

One rule: positions come last and in one transaction, when all that they stand behind was compared record by record; so an
application with positions on the target has all of its records and tables there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from orchestrator.errors import RefusedBySafety
from state.log.group_store import GroupStore
from state.log.protocol import FOR_EVER, GroupLog, Intended, Partition, TopicInfo, TopicSpec
from workers.commands.log_copy_plan import COPIED, CopiedTopic, Plan, keeps_less, partitions_of, positions_of
from workers.fleet.held_lease import Held
from workers.instance.ledger import SETTINGS
from workers.log.copying import append_all, append_missing, has_equal_values, placed
from workers.prepare import BACKFILLED, BEGINNING, BEGUN, COPY, DESCRIPTION, REPARTITIONED
from workers.same_topics import TOPIC_IDS
from workers.tasks import halts
from workers.topic_identities import SEEN

Places = dict[Partition, Mapping[int, int]]


async def carry_out(source: GroupLog, target: GroupLog, held: Held, plan: Plan) -> Plan:
    """What was copied. Raises RefusedBySafety where the target has other records."""
    application = held.lease.application
    described = json.loads(await source.metadata(application, DESCRIPTION, "app") or b"{}")
    positions = await positions_of(source, application, described)
    halted = await halts.read_all(source, application)
    await target.check_rights(application, Intended(seeds=True))  # positions come last, and records may take hours
    await target.put_metadata(application, COPY, "from", source.log_id.encode(), lease=held.lease)
    before = await source.topics([topic.name for topic in plan.topics])
    after = {name: await _created(target, info) for name, info in sorted(before.items())}
    copied = [await _copied(source, target, topic) for topic in plan.topics]
    began = await _began(source, application, before)
    layout = await _layout(source, application, before)
    places = await _placed(source, target, plan, positions, halted, [*began.items(), *layout.ends.items()])
    await held.check()
    facts = await _facts(source, target, application, before, after)
    facts += await _halted(target, application, halted, places)
    for one, position in began.items():
        key = f"{after[one.topic].topic_id}-{one.number}"
        await target.put_metadata(application, BEGINNING, key, str(places[one][position]).encode())
        facts += 1
    facts += await _under_lease(source, target, held, layout, places)
    moved = {one: places[one][position] for one, position in positions.items()}
    await _position(target, held, moved)
    await _identified(target, application, after, moved)
    await target.put_metadata(application, COPY, "from", None, lease=held.lease)
    return Plan(copied, len(moved), facts)


async def _created(target: GroupLog, info: TopicInfo) -> TopicInfo:
    """The topic on the target, which keeps its records as long as the source does."""
    made = (await target.topics([info.name])).get(info.name)
    if made is None:
        kept = info.retention if info.kind == "plain" else FOR_EVER
        made = await target.create_topic(TopicSpec(info.name, info.partitions, info.kind, kept))
    # A broker's own is a few days: times may be older. One that is there is ours then, of a copy that ended before this.
    if info.kind == "plain" and keeps_less(made.retention, info.retention):
        made = await target.set_retention(info.name, info.retention)
    return made


async def _copied(source: GroupLog, target: GroupLog, topic: CopiedTopic) -> CopiedTopic:
    written = 0
    for partition in topic.numbered():
        if topic.kind != "changelog":
            written += await append_missing(source, target, partition)
        elif not await has_equal_values(source, target, partition):
            written += await append_all(source, target, partition)
            if not await has_equal_values(source, target, partition):
                raise RefusedBySafety(
                    f"{partition}: the copy has keys that the source does not have, so it is not the copy's alone; delete the topic on "
                    "the target, and run the command again"
                )
    return msgspec.structs.replace(topic, records=written)


async def _placed(
    source: GroupLog,
    target: GroupLog,
    plan: Plan,
    positions: Mapping[Partition, int],
    halted: Mapping[str, halts.Halt],
    others: Iterable[tuple[Partition, int]],
) -> Places:
    """Where positions, halts and the others lie in the target; every record that is not a changelog's is compared."""
    asked: dict[Partition, set[int]] = {one: {position} for one, position in positions.items()}
    for halt in halted.values():
        for topic, number, offset in halt.records:
            asked.setdefault(Partition(topic, number), set()).add(offset)
    for one, position in others:
        asked.setdefault(one, set()).add(position)
    return {
        partition: await placed(source, target, partition, asked.get(partition, ()))
        for topic in plan.topics
        if topic.kind != "changelog"
        for partition in topic.numbered()
    }


async def _began(source: GroupStore, application: str, before: Mapping[str, TopicInfo]) -> dict[Partition, int]:
    """Where the application began to read the partitions that it reads from their end on."""
    kept = await source.metadata_of(application, BEGINNING)
    keys = {f"{info.topic_id}-{one.number}": one for info in before.values() for one in partitions_of(info)}
    return {keys[key]: int(position) for key, position in kept.items() if key in keys}


class _Layout(msgspec.Struct, frozen=True):
    """What a repartition left: to how many partitions, and where the inputs ended then; 0: there was none."""

    to: int = 0
    ends: dict[Partition, int] = {}


async def _layout(source: GroupStore, application: str, before: Mapping[str, TopicInfo]) -> _Layout:
    kept = await source.metadata(application, REPARTITIONED, "inputs")
    if kept is None:
        return _Layout()
    found = json.loads(kept)
    named = {str(one): one for info in before.values() for one in partitions_of(info)}
    return _Layout(found["to"], {named[name]: end for name, end in found["ends"].items() if name in named})


async def _under_lease(source: GroupStore, target: GroupStore, held: Held, layout: _Layout, places: Places) -> int:
    """What the group goes by whoever coordinates it: its live settings, as they are now, the layout of its inputs, and
    of which of them there is history elsewhere."""
    application = held.lease.application
    settings = await source.metadata(application, SETTINGS, SETTINGS.name)
    if settings != await target.metadata(application, SETTINGS, SETTINGS.name):
        await target.put_metadata(application, SETTINGS, SETTINGS.name, settings, lease=held.lease)
    if layout.to:
        ends = {str(one): places[one][end] for one, end in layout.ends.items()}
        note = json.dumps({"to": layout.to, "ends": ends}).encode()
        await target.put_metadata(application, REPARTITIONED, "inputs", note, lease=held.lease)
    history = await source.metadata_of(application, BACKFILLED)
    for topic, note in history.items():
        await target.put_metadata(application, BACKFILLED, topic, note, lease=held.lease)
    return (settings is not None) + bool(layout.to) + len(history)


async def _facts(
    source: GroupLog,
    target: GroupLog,
    application: str,
    before: Mapping[str, TopicInfo],
    after: Mapping[str, TopicInfo],
) -> int:
    """Copies what is known of the application; how many facts."""
    count = 0
    for kind in COPIED:
        for key, value in (await source.metadata_of(application, kind)).items():
            await target.put_metadata(application, kind, key, value)
            count += 1
    ids = {info.topic_id: after[name].topic_id for name, info in before.items()}
    for topic_id, value in (await source.metadata_of(application, BEGUN)).items():
        if topic_id in ids:
            await target.put_metadata(application, BEGUN, ids[topic_id], value)
            count += 1
    return count


async def _halted(target: GroupStore, application: str, halted: Mapping[str, halts.Halt], places: Places) -> int:
    """A halted task stays halted, at the same record."""

    def moved(place: halts.Place) -> halts.Place:
        topic, number, offset = place
        return topic, number, places[Partition(topic, number)][offset]

    for task, halt in halted.items():
        await target.put_metadata(application, halts.HALTS, task, halts.encode(halt.with_records(moved)))
    return len(halted)


async def _position(target: GroupLog, held: Held, moved: Mapping[Partition, int]) -> None:
    """Raises RefusedBySafety where the application has other positions there."""
    if not moved or await target.seed_positions(held.lease, moved, {}):
        return
    application = held.lease.application
    there = await target.positions(application, list(moved))
    if there != dict(moved):
        wrong: Any = sorted(one for one in moved if there.get(one) != moved[one])
        raise RefusedBySafety(
            f"'{application}' has positions on the target that are not the source's, such as {there.get(wrong[0])} in "
            f"{wrong[0]} for {moved[wrong[0]]}; remove its consumer group there, and run the command again"
        )


async def _identified(
    target: GroupStore, application: str, after: Mapping[str, TopicInfo], moved: Mapping[Partition, int]
) -> None:
    """From now on the application is known to have run on these topics, and to have these positions."""
    for name, info in after.items():
        await target.put_metadata(application, TOPIC_IDS, name, info.topic_id.encode())
        numbers = sorted(one.number for one in partitions_of(info) if one in moved)
        if numbers:
            await target.put_metadata(application, SEEN, name, json.dumps(numbers).encode())
