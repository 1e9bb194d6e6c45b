"""What a backfill gives the log: outputs and the final values of tables, a part at a time.

One rule: the order within a partition is that of `rows.PLACE`, and no more is held than a part, and some rows of each file
that it comes from. In the flow: stage (files in the work folder) -> here -> `Log.seed_positions`, in the driver or (`spreading`) on
executors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.spark.inputs import Computed
from pipeline.spark.rows import Outputs, read_pairs
from state.log.protocol import NewRecord, Partition
from workers.prepare import Prepared

PART_RECORDS, PART_BYTES = 5_000, 4 << 20
Part = Mapping[Partition, Sequence[NewRecord]]


def outputs(computed: Computed) -> Iterator[Part]:
    """What was sent, topic by topic. Raises PipelineError where some of it is there no more."""
    for topic, count in computed.sums("outputs").items():
        paths, left = computed.outputs(topic), count
        with closing(Outputs(paths)) as found:
            numbers = found.partitions()
        for number in numbers:
            for part in in_parts(sent(paths, number)):
                left -= len(part)
                yield {Partition(topic, number): part}
        if left:
            raise PipelineError(
                f"of the {count} records for {topic!r} that were computed {count - left} are in {computed.work}: its files were "
                "changed or removed meanwhile; nothing is written, run it again"
            )


def final_values(computed: Computed, prepared: Prepared) -> Iterator[Part]:
    """The entries of all tables."""
    for task in prepared.tasks():
        facts = computed.tasks[str(task.id)]
        for table in prepared.subtopology(task.id).tables:
            for part in in_parts(entries(computed.state(facts.task, table), facts.written_ms.get(table, 0))):
                yield {prepared.changelog(task.id, table): part}


def sent(paths: Sequence[Path], number: int) -> Iterator[NewRecord]:
    """What tasks have sent to one partition of a topic."""
    with closing(Outputs(paths)) as found:
        for out in found.of(number):
            yield NewRecord(out.key, out.value, out.timestamp_ms, out.headers)


def entries(path: Path, at_ms: int) -> Iterator[NewRecord]:
    """The entries of a table in key order, each with the time of the last write to it."""
    return (NewRecord(key, value, at_ms) for key, value in read_pairs(path))


def in_parts(made: Iterable[NewRecord]) -> Iterator[Sequence[NewRecord]]:
    """Some records at a time."""
    held: list[NewRecord] = []
    size = 0
    for record in made:
        held.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        if len(held) == PART_RECORDS or size >= PART_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def keep_outputs(computed: Computed, snapshot: Path) -> None:
    """Outputs stay beside the snapshot, for queries."""
    for topic in computed.sums("outputs"):
        folder = snapshot / "outputs" / topic
        folder.mkdir(parents=True, exist_ok=True)
        for path in computed.outputs(topic):
            os.replace(path, folder / f"{path.parent.parent.name}.parquet")  # noqa: PTH105
