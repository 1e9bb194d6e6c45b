"""In which order rows come of files that Spark reads: by the path of their file, and by their place in it.

One rule: rows of one time are processed in the order of their files, as those of files that we read ourselves. Spark takes the largest
first and packs small ones together: here each split is a task of its own, and the tasks' numbers say which.
In the flow: `sources` has a DataFrame -> here -> the numbers of its parts, in order -> the files of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.spark.set_to import set_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPEN, MOST = "spark.sql.files.openCostInBytes", "spark.sql.files.maxPartitionBytes"


@contextmanager
def one_split_a_task(session: SparkSession) -> Iterator[None]:
    """What is read here packs no two files together."""
    with set_to(session, {OPEN: str(session.conf.get(MOST))}):
        yield


def order_of_parts(frame: DataFrame) -> list[int]:
    """The numbers of the tasks that read files, by path and place; [] where a task reads no file or several, as those of tables and
    queries may."""
    execution: Any = frame._jdf.queryExecution()
    places: list[tuple[str, int, int]] = []
    for partition in execution.toRdd().partitions():
        if partition.getClass().getSimpleName() != "FilePartition" or len(partition.files()) != 1:
            return []
        [file] = partition.files()
        places.append((str(file.filePath().toPath().toString()), int(file.start()), int(partition.index())))
    return [number for _, _, number in sorted(places)]
