"""A worker's look at the halted tasks that it holds: which go on, and which skips are committed by now.

One rule: a halt goes from the log only after every skip that it names is committed. One look a heartbeat.
"""

from __future__ import annotations

from workers.tasks import halts, skips
from workers.tasks.halts import Halt
from workers.tasks.task import TaskRun
from workers.worker.ports import HaltPort


async def run(worker: HaltPort) -> None:
    """Look once a heartbeat at the tasks that are halted here, until cancelled."""
    pause = worker.spec.instance.settings.heartbeat_ms / 1000
    while True:
        await worker.pulse.next(pause)
        held = [(run, run.halt) for run in worker.runs.values() if run.halt is not None and run.halt_is_written]
        if not held:
            continue
        found = await halts.read_all(worker.log, worker.application)
        for one, halt in held:
            if worker.runs.get(one.id) is one and one.halt is halt:
                await _look(worker, one, found.get(one.scope))


async def _look(worker: HaltPort, run: TaskRun, found: Halt | None) -> None:
    if run.process is None:
        if found is None or found.skip:
            worker.caution.forget(run.scope)
            run.resume(found)
    elif found is not None and found.skip and skips.are_committed(found, run.committed, run.process):
        await _is_over(worker, run, found)


async def _is_over(worker: HaltPort, run: TaskRun, found: Halt) -> None:
    """The skips are committed: the halt goes from the log, unless the task was halted at a later record meanwhile."""
    halt = run.halt
    async with worker.halting:
        if run.halt is not halt:
            return
        seen = await worker.log.metadata(worker.application, halts.HALTS, run.scope)
        if seen is not None and halts.decode(seen) == found:
            await worker.log.replace_metadata(worker.application, halts.HALTS, run.scope, seen, None)
        if run.halt is halt:
            run.halt = None
