"""Executors write what a backfill gives a log that has room for several writers: a task of Spark for each partition.

One rule: the records of a partition come in one order, in the same parts, from files that are whole: so every attempt of its task
gives the same, and the log takes each record once. In the flow: stage (files in the work folder) -> here, with the ticket of
`Log.seed_positions` -> the log. A log with one writer has the same records from `final_records`, in the driver.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orchestrator.errors import OrchestratorError
from pipeline.spark.final_records import entries, in_parts, sent
from pipeline.spark.inputs import Computed
from pipeline.spark.running import in_thread
from pipeline.spark.session import failure
from state.log.protocol import NewRecord, Partition, Spread, Ticket
from workers.prepare import Prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Portion(msgspec.Struct, frozen=True):
    """What one partition gets: the entries of a table (one file), or what tasks have sent there. `count`: how many records."""

    topic: str
    number: int
    files: list[str]
    count: int
    is_table: bool = False
    at_ms: int = 0

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.number)

    def parts(self) -> Iterator[Sequence[NewRecord]]:
        """All records, some at a time."""
        paths = [Path(file) for file in self.files]
        return in_parts(entries(paths[0], self.at_ms) if self.is_table else sent(paths, self.number))


def portions(computed: Computed, prepared: Prepared, *, tables: bool) -> list[Portion]:
    """What is written: the entries of tables where they are wanted, and the outputs, of which readers wait, behind them."""
    found: list[Portion] = []
    for task in prepared.tasks() if tables else ():
        facts = computed.tasks[str(task.id)]
        for table in prepared.subtopology(task.id).tables:
            if facts.entries.get(table):
                topic, number = prepared.changelog(task.id, table)
                file = str(computed.state(facts.task, table))
                at_ms = facts.written_ms.get(table, 0)
                found.append(Portion(topic, number, [file], facts.entries[table], is_table=True, at_ms=at_ms))
    for (topic, number), count in sorted(computed.placed().items()):
        senders = {task for task, facts in computed.tasks.items() if facts.placed.get(topic, {}).get(number)}
        files = [str(path) for path in computed.outputs(topic) if path.parent.parent.name in senders]
        if count:
            found.append(Portion(topic, number, files, count))
    return found


def spread(session: SparkSession, listed: Sequence[Portion]) -> Spread | None:
    """Executors write these; None where there is nothing to write."""
    if not listed:
        return None

    async def write(ticket: Ticket) -> None:
        await in_thread(session, _write, session, pickle.dumps(ticket), listed)

    return Spread([one.partition for one in listed], write)


def _write(session: SparkSession, ticket: bytes, listed: Sequence[Portion]) -> None:
    """Raises what an executor raised, or SparkFailed, and OrchestratorError where less is written than was computed."""
    session.sparkContext.setJobDescription("writing to the log")
    job = partial(write_portions, ticket, msgspec.json.encode(listed))
    numbers = session.sparkContext.parallelize(range(len(listed)), len(listed))
    try:
        counts = dict(numbers.mapPartitions(job).collect())
    except Exception as error:  # whatever Spark raises: its own text is a page of Java
        raise failure(session, error) from error
    check_counts(listed, counts)


def check_counts(listed: Sequence[Portion], counts: Mapping[int, int]) -> None:
    """Raises OrchestratorError where a portion was not written whole."""
    for number, one in enumerate(listed):
        if counts.get(number) != one.count:
            raise OrchestratorError(
                f"executors wrote {counts.get(number, 0)} of {one.count} records of {one.partition}; nothing is committed"
            )


def write_portions(ticket: bytes, portions: bytes, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """On an executor: writes the portions of these numbers; (number, how many records) of each."""
    listed = msgspec.json.decode(portions, type=list[Portion])
    where: Ticket = pickle.loads(ticket)
    for number in numbers:
        one = listed[number]
        yield number, asyncio.run(where.write(one.partition, one.parts))
