"""Records of inputs that are not processed when an app is repartitioned: their state is about to be elsewhere.

One rule: before the topics grow there is none of them, for they lie by the number before; once topics have grown (by this command, which
was interrupted, or an input by others) the app cannot process any, so those that lie by the new number stay for later, and one that
does not is named. In the flow: `repartition` asks before each of its steps that the log would not take back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from orchestrator.errors import RefusedBySafety
from orchestrator.names import counted
from pipeline.values.partitioner import partition_of
from state.log.protocol import GroupLog, Partition

Unread = Mapping[Partition, tuple[int, int]]


async def refuse_unread(log: GroupLog, application: str, sources: Sequence[Partition]) -> None:
    """Raises RefusedBySafety: a record that is not processed lies where its key was, and its state would be elsewhere."""
    if why := await refused_for(log, application, sources):
        raise RefusedBySafety(why)


async def refused_for(log: GroupLog, application: str, sources: Sequence[Partition]) -> str:
    """Why `refuse_unread` refuses it; "" where it does not."""
    unread = sum(end - start for start, end in (await _unread(log, application, sources)).values())
    if not unread:
        return ""
    return (
        f"{counted(unread, 'offset')} of the inputs of '{application}' {'is' if unread == 1 else 'are'} not processed; stop what produces, start the app, wait for "
        "`orchestrator status` to show none, and stop it again"
    )


async def refuse_misplaced(
    log: GroupLog, url: str, application: str, sources: Sequence[Partition], to: int, own: Collection[str] = ()
) -> None:
    """Raises RefusedBySafety for a record that is not processed and does not lie by the number of partitions `to`. `own`: topics that the app
    alone writes."""
    unread = await _unread(log, application, sources)
    found = await asyncio.to_thread(_misplaced, url, unread, to)
    if found is not None:
        where, offset, key = found
        what = (
            f"'{application}' has not processed the record at {offset} of {where}, and its key {key!r} belongs to partition "
            f"{partition_of(key, to)} of {to}: it was sent by the number of partitions before"
        )
        if where.topic in own:
            raise RefusedBySafety(
                f"{what}, by the app itself, which ended when its inputs grew. Nothing brings it there: go on under another id, or begin anew "
                f"with `orchestrator reset {application}`"
            )
        raise RefusedBySafety(
            f"{what}. Stop what produces so, remove what is not processed of '{where.topic}' (a retention, with --force), run the command "
            "again, and send it anew"
        )


async def remove_forced(log: GroupLog, names: Collection[str]) -> None:
    """What a retention with --force removes of these topics. On the embedded log the instances of the app do that, and it has none before this
    command has ended; brokers do it by themselves."""
    topics = await log.topics(names)
    forced = [info for info in topics.values() if info.retention.forced]
    parts = [Partition(info.name, number) for info in forced for number in range(info.partitions)]
    past = await log.expired(parts, at_once=True)  # this command ends before its clock could have lasted
    if past:
        await log.trim(past)


async def _unread(log: GroupLog, application: str, sources: Sequence[Partition]) -> Unread:
    """From where to where each input is not processed."""
    ends = await log.ends(sources, settled=True)  # a producer is answered before its records can be read
    positions, starts = await log.positions(application, sources), await log.starts(sources)
    begins = {p: max(positions.get(p, starts[p]), starts[p]) for p in sources}
    return {p: (begins[p], ends[p]) for p in sources if ends[p] > begins[p]}


def _misplaced(url: str, unread: Unread, to: int) -> tuple[Partition, int, bytes] | None:
    import numpy as np
    import pyarrow.compute as pc

    from pipeline.columns.murmur import partitions_of
    from pipeline.spark.log_source import Slice, read

    for where, (start, end) in sorted(unread.items()):
        for batch in read(url, Slice(where.topic, where.number, start, end)):
            keyed = batch.filter(pc.is_valid(batch.column("key")))
            wrong = np.flatnonzero(partitions_of(keyed.column("key"), to) != where.number)
            if len(wrong):
                first = int(wrong[0])
                return where, keyed.column("offset")[first].as_py(), keyed.column("key")[first].as_py()
    return None
