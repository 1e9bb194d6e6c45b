"""What the tour measures beside the checks: restores, pauses. One rule: a figure comes from a run, never from a guess."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from examples.flights import app
from orchestrator.clocks import monotonic_s
from state import manifest, snapshot
from state.changelog import replay
from state.log.protocol import GroupLog, Log, Partition
from state.store.rocksdb import RocksDbStore
from workers.prepare import Prepared, prepare


def sources(rows: list[dict[str, Any]]) -> Counter[str]:
    """How the tasks were restored that started so far."""
    return Counter(row["source"] for row in rows if row["what"] == "started")


def listed(counts: Counter[str]) -> str:
    """`snapshot 8, changelog 2`: the most first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "nothing"


def longest_pause(rows: list[dict[str, Any]], status: dict[str, Any], moved: set[str]) -> dict[str, Any]:
    """The longest time between two commits of a task that stayed where it was, over its whole life."""
    longest: dict[str, Any] = {"ms": None, "task": None}
    for task in status["tasks"]:
        pause = task["pause_max_ms"]
        if task["id"] not in moved and pause is not None and (longest["ms"] is None or pause > longest["ms"]):
            longest = {"ms": pause, "task": task["id"]}
    return longest


async def restore(log: GroupLog, snapshots: Path, scratch: Path) -> dict[str, Any]:
    """Restore every task twice, one after the other: from the snapshot and its tail, and by replay alone."""
    prepared = await prepare(log, app)
    newest = manifest.newest(snapshots, app.id, log.log_id, prepared.counts())
    result: dict[str, Any] = {"tasks": 0, "entries": 0, "snapshot_ms": 0, "replay_ms": 0}
    for task in prepared.tasks():
        for table in prepared.subtopology(task.id).tables:
            partition = prepared.changelog(task.id, table)
            started = monotonic_s()
            with_snapshot = _ingested(prepared, newest, snapshots, scratch, str(task.id), table)
            await _catch_up(log, with_snapshot, partition)
            between = monotonic_s()
            replayed = RocksDbStore(scratch / "replay" / str(task.id) / table, stamp={})
            await _catch_up(log, replayed, partition)
            ended = monotonic_s()
            result["snapshot_ms"] += (between - started) * 1000
            result["replay_ms"] += (ended - between) * 1000
            result["entries"] += _count(replayed)
            with_snapshot.close()
            replayed.close()
        result["tasks"] += 1
    return {name: round(value) for name, value in result.items()}


def _count(store: RocksDbStore) -> int:
    return sum(1 for _ in store.range(None, None))


def _ingested(prepared: Prepared, newest: Any, snapshots: Path, scratch: Path, scope: str, table: str) -> RocksDbStore:
    store = RocksDbStore(scratch / "snapshot" / scope / table, stamp={})
    if newest is not None and scope in newest.scopes:
        described = manifest.load_scope(snapshots, newest, scope).table(table)
        if described is not None:
            snapshot.ingest(store, snapshots / newest.snapshot / scope, described)
    return store


async def _catch_up(log: Log, store: RocksDbStore, partition: Partition) -> None:
    end = (await log.ends([partition]))[partition]
    reader = log.reader()
    reader.add(partition, store.offset)
    while store.offset < end:
        for part in await reader.poll(max_bytes_per_partition=4 << 20):
            await replay(store, part)
    await reader.close()
