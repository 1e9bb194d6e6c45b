"""Cells on their way to their tasks: a shuffle of Spark's, some megabytes at a time.

One rule: what a reader holds, and what Java gets as one piece, is limited in bytes. `RDD.partitionBy` counts what it holds instead: of
a partition of the log, whose cells are all of one task, it held up to a thousand, and Java ended for want of memory. In the flow:
`reading` -> here -> `stage`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline.spark.runs import Moved

if TYPE_CHECKING:
    from pyspark import RDD

HELD_BYTES = 32 << 20


def moved(cells: RDD[Moved], tasks: int) -> RDD[Moved]:
    """A partition for each task, with its cells; by the same means as `RDD.partitionBy`."""
    from pyspark import RDD, serializers

    written: Any = serializers  # it has no types
    made: Any = cells.mapPartitions(pieces, preservesPartitioning=True)
    made._bypass_serializer = True  # they are bytes for Java already
    java: Any = cells.context._jvm
    pairs = java.PairwiseRDD(made._jrdd.rdd()).asJavaPairRDD()
    placed = pairs.partitionBy(java.PythonPartitioner(tasks, id(pieces)))
    return RDD(
        java.PythonRDD.valueOfPair(placed), cells.context, written.BatchedSerializer(written.CPickleSerializer())
    )


def pieces(cells: Iterable[Moved]) -> Iterator[bytes]:
    """On an executor: the number of a task and some of its cells, in turns, as Java takes them."""
    held: dict[int, list[Moved]] = defaultdict(list)
    size = 0
    for cell in cells:
        held[cell[0].pid].append(cell)
        size += len(cell[1])
        if size >= HELD_BYTES:
            yield from _sent(held)
            size = 0
    yield from _sent(held)


def _sent(held: dict[int, list[Moved]]) -> Iterator[bytes]:
    """All that is held; then there is nothing."""
    from pyspark import serializers

    written: Any = serializers  # it has no types
    dumps = written.CPickleSerializer().dumps
    while held:
        pid, cells = held.popitem()
        yield written.pack_long(pid)
        yield dumps(cells)
