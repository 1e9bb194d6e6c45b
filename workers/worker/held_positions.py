"""Positions of tasks that are halted, committed again: a log may forget what is not (Kafka: offsets.retention.minutes).

One rule: in the task's own queue. It goes on, moves or ends before or after, and never meanwhile: what it commits itself is
never followed by what was there before. Called by the worker's upkeep.
"""

from __future__ import annotations

import logging
from functools import partial

from orchestrator.model import Role
from state.errors import Fenced, RecordsLost, Refused, StateError
from state.log.protocol import TaskCommit
from workers.tasks.task import TaskRun
from workers.worker.ports import UpkeepPort

log = logging.getLogger("orchestrator.upkeep")


def is_held(run: TaskRun) -> bool:
    """Whether it is active here, and processes nothing."""
    return run.role is Role.ACTIVE and run.halt is not None and run.process is None


def commit_again(worker: UpkeepPort) -> None:
    """Of all such tasks, soon."""
    for run in worker.runs.values():
        if is_held(run):
            run.then(partial(_commit, worker, run))


async def _commit(worker: UpkeepPort, run: TaskRun) -> None:
    if not is_held(run):
        return
    writer = worker.transactional_id
    try:
        positions = await worker.log.positions(worker.application, run.inputs)
        part = TaskCommit(run.scope, run.epoch, {}, positions, worker.surroundings.wall_ms())
        guarantee, may_write = worker.guarantee()
        await worker.log.commit(worker.application, writer, [part], guarantee=guarantee, may_write=may_write)
    except Fenced as error:  # by age, too: nothing else finds it where all tasks of this worker are halted
        log.warning("%s%s", "" if isinstance(error, RecordsLost) else "fenced: ", error)
        worker.lost((), fenced=writer == worker.transactional_id)
    except Refused as error:
        log.warning("refused: %s", error)
        worker.lost((run,), fenced=False)
    except StateError as error:  # they are as they were; what came of it is seen the next time
        log.info("%s is halted, and its positions are not committed again for now: %s", run.id, error)
