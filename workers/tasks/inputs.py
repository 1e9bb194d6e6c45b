"""The inputs of a worker's active tasks, seen from the log: what is not processed yet, and what is no longer needed.

One rule: what is committed counts, and nothing else. Asked by tasks that begin, by what measures them and by the worker's upkeep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.errors import OrchestratorError
from orchestrator.model import TaskId
from state.errors import UnknownTopic
from state.log.protocol import GroupLog, Log, Partition, TopicInfo
from workers import topic_identities
from workers.prepare import Prepared, begin_at, from_the_end
from workers.tasks.task import TaskRun

logger = logging.getLogger("orchestrator.inputs")


async def ends(log: Log, partitions: Sequence[Partition]) -> dict[Partition, int] | None:
    """Where these inputs end, but for those that have no leader now; None where one of them was deleted."""
    try:
        return await log.known_ends(partitions)
    except UnknownTopic:
        return None


def lags(ends: Mapping[Partition, int], active: Sequence[TaskRun]) -> dict[str, int]:
    """Records not yet processed, by task; those of which that is known."""
    return {
        run.scope: sum(max(0, ends[p] - run.committed.get(p, 0)) for p in run.inputs)
        for run in active
        if all(p in ends for p in run.inputs)
    }


async def start_positions(
    log: GroupLog, application: str, prepared: Prepared, task: TaskId, partitions: Sequence[Partition]
) -> tuple[dict[Partition, int], bool]:
    """Where these inputs of a task go on: what is committed, else what the topic says of its start; and whether that is to be
    committed at once, because another program has set it, or because what was committed is gone. Raises OrchestratorError."""
    committed, lost, (strange, taken), starts = await asyncio.gather(
        log.positions(application, partitions),
        log.lost(application, partitions),
        topic_identities.set_elsewhere(log, application, partitions),
        log.starts(partitions),
    )
    for partition, place in sorted(strange.items()):
        raise OrchestratorError(
            f"{task}: another program has set the committed position in {partition} to {place} while the app ran; a start "
            f"of {application} says how to go on"
        )
    if lost:
        raise OrchestratorError(f"{task}: {topic_identities.lost_while_running(application, lost, committed)}")
    positions: dict[Partition, int] = {}
    missing = [p for p in partitions if p not in committed]
    for partition in await topic_identities.gone(log, application, missing):
        raise OrchestratorError(
            f"{task}: the committed position in {partition} was deleted while the app ran; a start of {application} says how to "
            "go on"
        )
    nowhere = [p for p in partitions if committed.get(p, -1) < starts[p]]
    ends = await log.ends(nowhere) if nowhere else {}
    skipped = False
    for partition in partitions:
        start = prepared.topology.topics[partition.topic].start
        position = committed.get(partition)
        gone = position is not None and position < starts[partition]
        if position is not None and not gone:
            positions[partition] = position
        elif start == "fail" and (gone or starts[partition] > 0):
            problem = f"the committed position {position} is gone" if gone else "no position is committed"
            raise OrchestratorError(
                f"{task}: {problem} in {partition}, which begins at {starts[partition]}; "
                'give the topic start="beginning" or start="end"'
            )
        elif from_the_end(prepared, partition):
            end = ends.get(partition, starts[partition])
            begun = end if gone else await begin_at(log, prepared, partition, end)
            positions[partition] = begun if begun >= starts[partition] else end
        else:
            positions[partition] = starts[partition]
        if gone:
            skipped = True
            logger.warning(
                "%s was read up to %d, and begins at %d now: what lies between was deleted before it was read (retention, or by "
                "hand); %s goes on at %d",
                *(partition, position, starts[partition], task, positions[partition]),
            )
    return positions, bool(taken) or skipped


async def trim(log: Log, topics: Mapping[str, TopicInfo], active: Iterable[TaskRun]) -> None:
    """Consumed records of re-key topics may go."""
    done = {
        p: run.committed[p]
        for run in active
        for p in run.inputs
        if topics[p.topic].kind == "repartition" and p in run.committed
    }
    if done:
        await log.trim(done)
