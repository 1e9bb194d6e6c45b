"""What a session that was just started has of Python workers: see one_java.py."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa

from pipeline.spark.session import spark_session, stop
from pipeline.spark.warming import NAME
from tests.spark.test_attempts import workers_of_spark
from workers.commands.cluster import Cluster

SLOTS = 2


def whose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: its process, whether it had what tasks need, and whether Spark came out of an archive."""
    import pyspark

    has = "pipeline.spark.stage" in sys.modules
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "has": [has], "packed": [".zip" in pyspark.__file__]})


def seen() -> dict[str, object]:
    session = spark_session("beginning", Cluster(f"local[{SLOTS}]"), is_for_tasks=True)
    try:
        for thread in threading.enumerate():
            if thread.name == NAME:
                thread.join()
        before = workers_of_spark()
        rows = session.range(0, SLOTS, 1, SLOTS).mapInArrow(whose, "pid long, has boolean, packed boolean").collect()
        return {"before": before, "rows": [row.asDict() for row in rows]}
    finally:
        stop(session)
