"""The inputs of a worker's active tasks, seen from the log: what is not processed yet, and what is no longer needed.

One rule: what is committed counts, and nothing else. Asked by the session and by the worker's upkeep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from state.errors import UnknownTopic
from state.log.protocol import Log, TopicInfo
from workers.tasks.task import TaskRun


async def lags(log: Log, active: Sequence[TaskRun]) -> dict[str, int]:
    """Records not yet processed, by task."""
    partitions = [p for run in active for p in run.inputs]
    try:
        ends = await log.ends(partitions)
    except UnknownTopic:
        return {}
    return {run.scope: sum(max(0, ends[p] - run.committed.get(p, 0)) for p in run.inputs) for run in active}


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
