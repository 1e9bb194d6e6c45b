"""Python workers that begin while a command plans its first job: the first task of a slot finds one that has imported what it needs.

One rule: it is an earlier start and nothing else: whether it succeeds, fails or is cut off, the jobs are the same. With a local
master alone: executors of a cluster come when they like, and get our packages later. In the flow: `session` begins it when there
is a context, and waits for its end when Spark is stopped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("orchestrator.spark")
NEEDED = ("pipeline.spark.reading", "pipeline.spark.stage")
WORKERS_MAX = 8  # a machine with more slots may not have as many tasks
NAME = "Python workers begin"
SHORT, SHORT_FOR_TASKS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "SPARK_SIMPLIFIED_TRACEBACK"


class Warming:
    """A worker for each slot, in a thread of its own."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        if context.getConf().get(SHORT, "true") == "true":
            # As SQL does: a worker is used again where its environment is the same.
            context.environment[SHORT_FOR_TASKS] = "1"
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def over(self) -> None:
        """Spark has stopped, or no job is wanted any more: nothing of this is left then."""
        self._thread.join()

    def _run(self) -> None:
        context = self._context
        try:
            context.setJobDescription(NAME)
            count = min(context.defaultParallelism, WORKERS_MAX)
            context.parallelize(range(count), count).foreachPartition(_import)
        except Exception as error:  # noqa: BLE001 - whatever it is, the first real task meets it and says so
            logger.debug("%s: %s", NAME, error)


def _import(_: Iterable[int]) -> None:
    """On an executor."""
    for name in NEEDED:
        import_module(name)
