"""The pairs of a table, task after task: from the instances that run it, or from the stores on this machine's disk.

One rule: a pair is what the app has: what has expired, and what a table keeps for itself, is left out. In each task the pairs
come in the order of their keys' bytes. Pages are read one after the other, so what is written meanwhile may be among them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.coordinator.requests import ScanRequest, StoreRequest
from orchestrator.errors import OrchestratorError, RefusedBySafety
from orchestrator.names import counted, natural
from pipeline.tables import expiry
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time.stored_form import StoredForm, StoredRow
from state.directory import StateDirectory, TableOnDisk
from state.left_stores import left_stores
from state.log.protocol import GroupLog, Partition
from state.store.rocksdb import pairs_on_disk
from workers.commands.consume import records_between
from workers.commands.query_place import ask_where_it_is
from workers.fleet.client import Client

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows: of `tasks`, with start <= key < stop (None: to the last one)."""

    tasks: tuple[str, ...]
    table: str
    start: bytes
    stop: bytes | None
    expire_ms: int | None
    form: StoredForm

    @property
    def entries(self) -> tuple[bytes, bytes | None]:
        """The entries of the stores among which they lie."""
        return self.form.bounds(self.start, self.stop)


async def of_group(client: Client, wanted: Wanted) -> AsyncIterator[StoredRow]:
    """From the instances that run the tasks. Raises RefusedBySafety where no group runs."""
    for task in wanted.tasks:
        time = expiry.BEFORE_ALL_MS
        if wanted.expire_ms is not None:
            kept = await ask_where_it_is(client, StoreRequest(task, wanted.table, STREAM_TIME_KEY))
            time = expiry.stream_time(kept["value"])
        (start, stop), more = wanted.entries, True
        while more:
            request = ScanRequest(task, wanted.table, start, stop, PAGE)
            page = await ask_where_it_is(client, request)
            if page["restore_lag"]:
                raise OrchestratorError(f"{task} is being restored, {page['restore_lag']} records behind; try again")
            for key, value in page["pairs"]:
                found = _live(wanted, time, key, value)
                if found is not None:
                    yield found
            more = page["more"]
            if page["pairs"]:
                start = page["pairs"][-1][0] + b"\0"


async def of_disk(
    log: GroupLog, state: Path, facts: dict[str, Any], wanted: Wanted, warn: Callable[[str], None]
) -> Any:
    """Returns an iterator of pairs from the newest copy of each task on this machine; a copy that lacks changes is warned
    of, and one that is of another log, or of another history of this one, is passed over. Raises RefusedBySafety where there is no copy, or
    an instance has it open."""
    judge = await left_stores(log, state.name, [facts["changelog_topic"]])
    partitions = [Partition(facts["changelog_topic"], int(task.partition("_")[2])) for task in wanted.tasks]
    ends, starts = await log.ends(partitions), await log.starts(partitions)
    places: list[tuple[StateDirectory, str, Path]] = []
    for task, partition in zip(wanted.tasks, partitions, strict=True):
        best: tuple[int, StateDirectory, Path] | None = None
        damaged: str | None = None
        foreign = f"{task} has no state in {state}"
        for name in sorted((p.name for p in state.glob("*/") if (p / task / wanted.table).is_dir()), key=natural):
            directory = StateDirectory(state.parent, state.name, name)
            found = directory.tables(task).get(wanted.table, _unread(directory.task(task) / wanted.table))
            damaged = found.problem or damaged
            if found.peek is None or not found.peek.stamp.get("log_id"):
                continue
            if (why := judge.problem(partition, found.peek)) is not None:
                foreign = f"the state of {task} in {found.path} is not of this log as it is now: {why}"
                continue
            if best is None or found.peek.offset > best[0]:
                best = found.peek.offset, directory, found.path
        if best is None and damaged is not None:
            raise RefusedBySafety(f"nothing runs, and {damaged}; `orchestrator run` restores what is damaged")
        if best is None and ends[partition] > 0:  # also where others have deleted all that there was
            raise RefusedBySafety(
                f"nothing runs, and {foreign}; start the app with `orchestrator run`, or name its --state-dir"
            )
        if best is not None:
            places.append((best[1], task, best[2]))
            since = max(best[0], starts[partition])
            if best[0] < ends[partition] and await records_between(log, partition, since, ends[partition]):
                lacks = counted(ends[partition] - best[0], "offset")
                warn(
                    f"{task}: its state on disk lacks the last {lacks} of its changelog; a start of the app restores them"
                )
    return _read(places, wanted)


def _unread(path: Path) -> TableOnDisk:
    return TableOnDisk(path, None, f"the folder of {path} may not be looked into: check its permissions")


async def _read(places: list[tuple[StateDirectory, str, Path]], wanted: Wanted) -> AsyncIterator[StoredRow]:
    for directory, task, path in places:
        with directory.lock(task):
            time = expiry.BEFORE_ALL_MS
            if wanted.expire_ms is not None:
                kept = dict(pairs_on_disk(path, STREAM_TIME_KEY, STREAM_TIME_KEY + b"\0"))
                time = expiry.stream_time(kept.get(STREAM_TIME_KEY))
            for key, value in pairs_on_disk(path, *wanted.entries):
                found = _live(wanted, time, key, value)
                if found is not None:
                    yield found


def _live(wanted: Wanted, stream_ms: int, key: bytes, value: bytes) -> StoredRow | None:
    """The row of an entry, if it is one of those that are wanted and has not expired."""
    live: bytes | None = value
    if wanted.expire_ms is not None:
        live = None if key == STREAM_TIME_KEY else expiry.live_value(value, wanted.expire_ms, stream_ms)
    row = None if live is None else wanted.form.row(key, live)
    if row is None or row.key < wanted.start or (wanted.stop is not None and row.key >= wanted.stop):
        return None
    return row
