"""A changelog whose beginning others deleted has its table again: what stores on this machine have is written behind what is left.

One rule: what is left is newer than any store that lacks it, so a key of which it has anything is not written. Written twice is
as written once, so that a run which ended half way is made again. While nothing runs: `orchestrator topics accept`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from state.clocks import wall_ms
from state.directory import StateDirectory
from state.left_stores import LeftStores, left_stores
from state.log import base, cut_changelogs
from state.log.protocol import GroupLog, NewRecord, Partition, TopicInfo
from state.store.rocksdb import pairs_on_disk
from workers.log.copying import CHUNK, records_of


async def write_back(
    log: GroupLog, application: str, described: Mapping[str, Any], topic: TopicInfo, state: Path
) -> int | None:
    """How many entries of stores below `state`, the application's folder, were written to the changelog `topic`; None where it
    is none, or lacks nothing. Raises DirectoryLocked where an instance has one open."""
    found = [(name, facts) for name, facts in described["tables"].items() if facts["changelog_topic"] == topic.name]
    bases = await log.metadata_of(application, base.BASE)
    partitions = [Partition(topic.name, number) for number in range(topic.partitions)]
    cut = [one for one, start in sorted((await log.starts(partitions)).items()) if start]
    if not found or not cut or base.of_topic(bases, topic) is not None:
        return None
    table, facts = found[0]
    judge, written, whole = await left_stores(log, application, [topic.name]), 0, []
    for one in cut:
        task = f"{facts['subtopology']}_{one.number}"
        best = _newest(state, task, table, one, judge)
        if best is not None:
            directory, path = best
            with directory.lock(task):
                written += await _written(log, one, path)
            whole.append(one.number)
    await cut_changelogs.take(log, application, topic, whole)
    return written


def _newest(
    state: Path, task: str, table: str, partition: Partition, judge: LeftStores
) -> tuple[StateDirectory, Path] | None:
    """The store of this machine that has most of its changelog, and is of it."""
    best: tuple[int, StateDirectory, Path] | None = None
    for name in sorted(path.name for path in state.glob("*/") if (path / task / table).is_dir()):
        directory = StateDirectory(state.parent, state.name, name)
        seen = directory.tables(task).get(table)
        if seen is None or seen.peek is None or not seen.peek.offset or judge.problem(partition, seen.peek) is not None:
            continue
        if best is None or seen.peek.offset > best[0]:
            best = seen.peek.offset, directory, seen.path
    return None if best is None else best[1:]


async def _written(log: GroupLog, partition: Partition, path: Path) -> int:
    left = {record.key async for record in records_of(log, partition)}
    chunk, count, now_ms = [], 0, wall_ms()
    for key, value in pairs_on_disk(path, b"", None):
        if key not in left:
            chunk.append(NewRecord(key, value, now_ms))
        if len(chunk) == CHUNK:
            await log.append({partition: chunk})
            count, chunk = count + CHUNK, []
    if chunk:
        await log.append({partition: chunk})
    return count + len(chunk)
