"""The inputs of a worker's active tasks, seen from the log: what is not processed yet, and what nobody needs any more.

One rule: what is committed counts, and nothing else. Asked by the session and by the worker's upkeep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.errors import UnknownTopic

if TYPE_CHECKING:
    from workers.worker import Worker


async def lags(worker: Worker) -> dict[str, int]:
    """Records not yet processed, by task."""
    active = worker.records.active()
    partitions = [p for run in active for p in run.inputs]
    try:
        ends = await worker.log.ends(partitions)
    except UnknownTopic:
        return {}
    return {run.scope: sum(max(0, ends[p] - run.committed.get(p, 0)) for p in run.inputs) for run in active}


async def trim(worker: Worker) -> None:
    """Consumed records of re-key topics may go."""
    topics = worker.prepared.topics
    done = {
        p: run.committed[p]
        for run in worker.records.active()
        for p in run.inputs
        if topics[p.topic].kind == "repartition" and p in run.committed
    }
    if done:
        await worker.log.trim(done)
