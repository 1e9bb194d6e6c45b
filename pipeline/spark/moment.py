"""One moment of the log at which an app's answer can be compared: what was read by then, and what the app had written.

One rule: a comparison is of what was read, so the moment lies between two equal readings of the committed positions, with
nothing under way in a topic between subtopologies if that comes to pass; what is behind it, or under way, is counted and stated, never
passed over. What the app wrote is seen to its settled end: a position may be there before the records that were committed with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.clocks import monotonic_s
from orchestrator.errors import RefusedBySafety
from pipeline.spark.inputs import external
from state.log.protocol import GroupLog, Log, Partition
from workers.commands.consume import records_between
from workers.prepare import Prepared, beginning, from_the_end

QUIET_S, STILL_S, LOOK_S = 20.0, 3.0, 0.1
BUSY_S = 3.0  # after which what is under way is taken out


@dataclass(frozen=True)
class Moment:
    """Inputs are read from `begins` up to `until`; all that the app wrote before lies from `starts` to `ends`. `unread`: offsets
    behind `until` that were there when the moment was looked for; `under_way`: of re-keys from where to where they are not yet processed; `gone`:
    offsets of inputs that retention removed; `unknown`: inputs of which it is not known where the app began."""

    begins: Mapping[Partition, int]
    until: Mapping[Partition, int]
    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    unread: int
    under_way: Mapping[Partition, tuple[int, int]]
    gone: int
    unknown: tuple[Partition, ...]


def sources(prepared: Prepared) -> list[Partition]:
    """The inputs of all subtopologies."""
    found = {
        Partition(topic, number)
        for sub in prepared.topology.subtopologies
        for topic in sub.sources
        for number in range(prepared.topics[topic].partitions)
    }
    return sorted(found)


async def moment_of(log: GroupLog, prepared: Prepared) -> Moment:
    """The moment at which all is processed that is in the inputs now; the last one looked at where positions stand still, or
    that does not come in time."""
    inputs = sources(prepared)
    read = set(external(prepared))
    wanted = await log.ends([p for p in inputs if p.topic in read])
    everything = [
        Partition(name, number) for name, info in prepared.topics.items() for number in range(info.partitions)
    ]
    own = [p for p in everything if p.topic not in read]
    starts = await log.starts(everything)
    begun = monotonic_s()
    deadline = still = begun + QUIET_S
    last: Mapping[Partition, int] = {}
    while True:
        before = await log.positions(prepared.app.id, inputs)
        ends = {**await log.ends(list(wanted)), **await log.ends(own, settled=True)}
        if before == await log.positions(prepared.app.id, inputs):
            at = {p: before.get(p, starts[p]) for p in inputs}
            if at != last:
                last, still = at, monotonic_s() + STILL_S
            under_way = {p: (at[p], ends[p]) for p in inputs if p.topic not in read and ends[p] > at[p]}
            behind = [p for p in wanted if at[p] < wanted[p]]
            until_s = min(still, deadline, deadline if behind else begun + BUSY_S)
            if not (under_way or behind) or monotonic_s() > until_s:
                break
        await asyncio.sleep(LOOK_S)
    begins, unknown = await _begins(log, prepared, list(wanted), before, starts, wanted)
    until = {p: max(at[p], begins[p]) for p in wanted}
    behind = [p for p in behind if until[p] < wanted[p] and await records_between(log, p, until[p], wanted[p])]
    unread = sum(wanted[p] - until[p] for p in behind)
    gone = sum(max(0, starts[p] - begins[p]) for p in wanted)
    return Moment(begins, until, starts, ends, unread, under_way, gone, tuple(unknown))


async def removed_since(log: Log, moment: Moment, topics: Collection[str]) -> dict[str, int]:
    """How many offsets of topics retention has removed since the moment was looked for."""
    now = await log.starts([p for p in moment.starts if p.topic in topics])
    found = dict.fromkeys(topics, 0)
    for p, start in now.items():
        found[p.topic] += max(0, start - moment.starts[p])
    return found


async def _begins(
    log: GroupLog,
    prepared: Prepared,
    inputs: Sequence[Partition],
    positions: Mapping[Partition, int],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> tuple[dict[Partition, int], list[Partition]]:
    """Where the app began to read, and the inputs of which that is not known: an earlier version did not record it."""
    found: dict[Partition, int] = {}
    unknown: list[Partition] = []
    for p in inputs:
        if not from_the_end(prepared, p):
            found[p] = 0
            continue
        begun = await beginning(log, prepared, p)
        if begun is None and p in positions:
            unknown.append(p)
        found[p] = ends[p] if begun is None else begun
    return found, unknown


async def first_begins(log: GroupLog, prepared: Prepared, until: Mapping[Partition, int]) -> dict[Partition, int]:
    """Where an app that has committed nothing reads each input from, as an instance would: a topic that is read from its end has nothing
    before now but the history that is named, or before the position that an instance has recorded as its beginning. Raises
    RefusedBySafety where the beginning is gone and the topic wants it."""
    found = dict(await log.starts(list(until)))
    for p, start in sorted(found.items()):
        topic = prepared.topology.topics.get(p.topic)
        if topic is not None and topic.start == "fail" and start > 0:
            raise RefusedBySafety(
                f'no position is committed in {p}, which begins at {start}; give the topic start="beginning" or start="end"'
            )
        if from_the_end(prepared, p):
            begun = await beginning(log, prepared, p)
            found[p] = until[p] if begun is None or begun < start else begun
    return found
