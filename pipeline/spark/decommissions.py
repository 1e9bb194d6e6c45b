"""Which instances lie on executors that Spark is taking away (spark.decommission.enabled: a spot machine, a drained node).

One rule: Spark reports it to the driver and to no Python process, so the driver looks; an executor that is taken away once
stays so. In the flow: hosting -> `Decommissions` -> Spark's scheduler, through py4j.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.spark.leash import Hosted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_MAX = 100  # attempts of a task that are looked at


class Decommissions:
    """Looks into Spark's scheduler. Its calls block."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._executors: dict[int, str] = {}  # by attempt of a task, which stays where it is

    def among(self, processes: Iterable[Hosted]) -> list[Hosted]:
        """Those whose executor is taken away. Raises what py4j raises where Spark is gone."""
        scala: Any = self._context._jsc.sc()
        found = []
        for process in processes:
            executor = self._executor(scala, process)
            if executor and scala.taskScheduler().getExecutorDecommissionState(executor).isDefined():
                found.append(process)
        return found

    def _executor(self, scala: Any, process: Hosted) -> str:
        """ "" where Spark does not list the task yet, or does not any more."""
        if process.task not in self._executors:
            tasks = scala.statusStore().taskList(process.stage, 0, TASKS_MAX)
            for number in range(tasks.size()):
                task = tasks.apply(number)
                self._executors[task.taskId()] = task.executorId()
        return self._executors.get(process.task, "")
