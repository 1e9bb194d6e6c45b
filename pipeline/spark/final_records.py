"""What a backfill gives the log: outputs and the final values of tables, a part at a time.

One rule: the order within a partition is that of `rows.PLACE`, and no more is held than a part, and some rows of each file
that it comes from. In the flow: stage (files in the work folder) -> here -> `Log.seed_positions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from pipeline.spark.inputs import Computed
from pipeline.spark.rows import Outputs, read_pairs
from state.log.protocol import NewRecord, Partition
from workers.prepare import Prepared

PART_RECORDS, PART_BYTES = 5_000, 4 << 20
Part = Mapping[Partition, Sequence[NewRecord]]


def outputs(computed: Computed) -> Iterator[Part]:
    """What was sent, topic by topic."""
    for topic in computed.sums("outputs"):
        with closing(Outputs(computed.outputs(topic))) as found:
            for number in found.partitions():
                made = (NewRecord(out.key, out.value, out.timestamp_ms, out.headers) for out in found.of(number))
                yield from _parts(Partition(topic, number), made)


def final_values(computed: Computed, prepared: Prepared) -> Iterator[Part]:
    """The entries of all tables, each with the time of the last write to its table, in key order."""
    for task in prepared.tasks():
        facts = computed.tasks[str(task.id)]
        for table in prepared.subtopology(task.id).tables:
            at_ms = facts.written_ms.get(table, 0)
            pairs = read_pairs(computed.state(facts.task, table))
            made = (NewRecord(key, value, at_ms) for key, value in pairs)
            yield from _parts(prepared.changelog(task.id, table), made)


def _parts(partition: Partition, made: Iterable[NewRecord]) -> Iterator[Part]:
    held: list[NewRecord] = []
    size = 0
    for record in made:
        held.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        if len(held) == PART_RECORDS or size >= PART_BYTES:
            yield {partition: held}
            held, size = [], 0
    if held:
        yield {partition: held}
