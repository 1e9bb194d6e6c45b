"""The stores of an application as they are now, as DataFrames: copies that its instances make of them, or what lies on disk.

One rule: a store says itself up to where it has its changelog, and is compared with that and nothing later. Copies are files
of the instance's machine: what is on another machine is named as not compared, never passed over.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from orchestrator.coordinator.requests import CopyRequest, InstancesRequest
from orchestrator.errors import OrchestratorError
from pipeline.spark.rows import FLUSH_ROWS
from state.directory import COPIES, StateDirectory
from state.errors import PositionOutOfRange, StateError, StoreDamaged
from state.left_stores import LeftStores, left_stores
from state.log.batches import decode
from state.log.protocol import GroupLog, Partition
from state.store.rocksdb import pairs_on_disk, peek
from workers.fleet.client import Client
from workers.fleet.presence import is_looked_after
from workers.prepare import Prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ON_DISK = "on disk"
OWNER = "active"
WAIT_MS = 200
OWNERS_S, AGAIN_S = 10.0, 1.0  # an owner that was killed is replaced within it; each look copies all stores
SCHEMA = "subject string, copy int, partition int, key binary, found binary"
NONE: Mapping[str, str] = MappingProxyType({})
BAD_SCHEMA = "copy int, problem string"


class Copy(NamedTuple):
    """A store: where it lies, whose it is, and up to where it has its changelog."""

    instance: str
    role: str
    task: str
    table: str
    path: str
    offset: int

    @property
    def partition(self) -> int:
        return int(self.task.partition("_")[2])

    def __str__(self) -> str:
        return f"{self.task} on {self.instance} ({self.role})"


@asynccontextmanager
async def copies(
    log: GroupLog, prepared: Prepared, client: Client | None, state: Path
) -> AsyncIterator[tuple[list[Copy], list[str]]]:
    """The stores, and a sentence for each that cannot be read. From the group where one runs, else from `state`, the folder of
    the application on this machine, whose tasks are locked meanwhile."""
    if client is not None and await is_looked_after(log, prepared.app.id):
        name = secrets.token_hex(6)
        made, folders, problems = await made_by_group(client, name)
        try:
            yield described(made, log.log_id, problems), problems
        finally:
            for folder in folders:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return
    with ExitStack() as stack:
        problems = []
        found: list[Copy] = []
        for path in sorted(state.glob("*/")):
            directory = StateDirectory(state.parent, state.name, path.name)
            for task in directory.tasks():
                stack.enter_context(directory.lock(task))
                found += [
                    Copy(path.name, ON_DISK, task, table, str(one.path.absolute()), 0)
                    for table, one in directory.tables(task).items()
                ]
        changelogs = {name: table.changelog for name, table in prepared.app.tables.items()}
        judge = await left_stores(log, prepared.app.id, list(changelogs.values()))
        yield described(found, log.log_id, problems, judge, changelogs), problems


async def made_by_group(client: Client, name: str) -> tuple[list[Copy], set[Path], list[str]]:
    """Copies that the instances made, their folders, and a sentence for each that cannot be read here."""
    found: list[Copy] = []
    folders: set[Path] = set()
    problems: list[str] = []
    for place in await client.ask(InstancesRequest()):
        try:
            answer = await client.ask_instance(place["address"], CopyRequest(name))
        except OrchestratorError as error:
            problems.append(f"the stores of {place['instance']} were not copied ({error}); audit again")
            continue
        problems += [f"{place['instance']}: {problem}" for problem in answer["problems"]]
        for task, table, path, role in answer["stores"]:
            if not Path(path).exists():
                problems.append(
                    f"the stores of {place['instance']} are on {place['host'] or 'another machine'}, and {path} cannot be read "
                    "here; audit there, or share its state folder"
                )
                break
            folders.add(next(p for p in Path(path).parents if p.parent.name == COPIES))
            found.append(Copy(place["instance"], role, task, table, path, 0))
    return found, folders, problems


def described(
    found: Sequence[Copy],
    log_id: str,
    problems: list[str],
    judge: LeftStores | None = None,
    changelogs: Mapping[str, str] = NONE,
) -> list[Copy]:
    """Each with its offset; one that cannot be opened, or is of another log, is a problem. `judge`: of what lies on disk, with the names
    of the changelogs by table."""
    good: list[Copy] = []
    for one in found:
        try:
            seen = peek(Path(one.path))
        except StoreDamaged as error:
            problems.append(f"{one}, table {one.table}: {error}")
            continue
        why = "it belongs to another log" if seen.stamp.get("log_id") not in (None, log_id) else None
        if judge is not None and one.table in changelogs:
            why = why or judge.problem(Partition(changelogs[one.table], one.partition), seen)
        if why is not None:
            problems.append(f"{one}, table {one.table}: {why}; a start of the app restores it")
        else:
            good.append(one._replace(offset=seen.offset))
    return good


async def made_whole(
    log: GroupLog, client: Client, table: str, places: Mapping[str, Partition]
) -> tuple[dict[str, Copy], list[str]]:
    """Of a table the copy of each task that is whole, by task, and why others cannot be read. `places`: the tasks, with their
    partitions of the changelog. An owner that is being replaced, or restores, is waited for."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + OWNERS_S
    while True:
        ends = await log.ends(list(places.values()))
        made, folders, problems = await made_by_group(client, secrets.token_hex(6))
        good = described([one for one in made if one.table == table], log.log_id, problems)
        whole = await whole_of(log, good, places, ends)
        problems += [f"{one} is being restored" for one in good if one.task in places and one.task not in whole]
        if len(whole) == len(places) or loop.time() > give_up:
            return whole, problems
        for folder in folders:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.sleep(AGAIN_S)


async def whole_of(
    log: GroupLog, found: Sequence[Copy], places: Mapping[str, Partition], ends: Mapping[Partition, int]
) -> dict[str, Copy]:
    """Of each task the copy that has all that was committed: the owner's, or the furthest where its changelog has nothing between it
    and the end. A copy that is being restored lacks keys, and so does what was on disk when a process was killed."""
    whole: dict[str, Copy] = {}
    for task, place in places.items():
        mine = sorted((one for one in found if one.task == task), key=lambda one: one.offset)
        owners = [one for one in mine if one.role == OWNER]
        if owners:
            whole[task] = max(
                [owners[-1], *(one for one in mine if one.offset >= ends[place])], key=lambda one: one.offset
            )
        elif mine and not await lacks(log, place, mine[-1].offset, ends[place]):
            whole[task] = mine[-1]
    return whole


async def lacks(log: GroupLog, place: Partition, offset: int, end: int) -> bool:
    """Whether records lie from `offset` up to `end`: on Kafka a marker lies behind each commit, which no store counts."""
    reader = log.reader()
    reader.add(place, offset)
    loop = asyncio.get_running_loop()
    give_up = loop.time() + OWNERS_S
    try:
        while offset < end and loop.time() < give_up:
            for item in await reader.poll(wait_ms=WAIT_MS):
                if item.data and any(offset <= one.offset < end for one in decode(item.data, item.position)):
                    return True
                offset = item.next_position
        return offset < end
    except PositionOutOfRange:  # compaction has removed what it lacks, or the log has lost what it has
        return True
    finally:
        await reader.close()


# ---------------------------------------------------------------- on executors


def store_frame(session: SparkSession, chosen: Sequence[Copy]) -> tuple[DataFrame, DataFrame]:
    """(the pairs of the stores, what could not be read), by the number of the copy."""
    job = json.dumps([[one.table, one.partition, one.path] for one in chosen])
    slots = session.sparkContext.defaultParallelism
    numbers = session.range(0, len(chosen), 1, max(1, min(len(chosen), slots)))
    return (
        numbers.mapInArrow(partial(read_stores, job), SCHEMA),
        numbers.mapInArrow(partial(try_stores, job), BAD_SCHEMA),
    )


def read_stores(job: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: all pairs of the stores that the rows number, up to the first that cannot be read."""
    listed = json.loads(job)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            table, partition, path = listed[number]
            pairs = pairs_on_disk(Path(path), b"", None)
            try:
                while part := list(islice(pairs, FLUSH_ROWS)):
                    yield _batch(table, number, partition, part)
            except StateError:  # `try_stores` says so
                continue


def try_stores(job: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: which of the stores cannot be read to their end, and why."""
    listed = json.loads(job)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            try:
                for _ in pairs_on_disk(Path(listed[number][2]), b"", None):
                    continue
            except StateError as error:
                yield pa.RecordBatch.from_pydict(
                    {"copy": pa.array([number], pa.int32()), "problem": pa.array([str(error)], pa.string())}
                )


def _batch(table: str, number: int, partition: int, part: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "subject": pa.array([table] * len(part), pa.string()),
            "copy": pa.array([number] * len(part), pa.int32()),
            "partition": pa.array([partition] * len(part), pa.int32()),
            "key": pa.array([key for key, _ in part], pa.binary()),
            "found": pa.array([value for _, value in part], pa.binary()),
        }
    )
