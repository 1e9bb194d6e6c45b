"""A changelog whose beginning others deleted is taken as it is, and has its table again where a store on this machine has it: its
entries are written behind what is left.

One rule: what was left is newer than any store that lacks it, so a key of which it has anything is not written; all of it comes in
one transaction with what is known of it. On several machines, before the next start, the store that has most is the one that
counts, in whatever order they are asked. While nothing runs, under the lease: `orchestrator topics accept`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import RefusedBySafety
from state.clocks import wall_ms
from state.directory import StateDirectory
from state.left_stores import LeftStores, left_stores
from state.log import base
from state.log.batches import decode
from state.log.cut_changelogs import STARTS, Taken, taken
from state.log.group_store import AppMetadata, Lease
from state.log.protocol import GroupLog, NewRecord, Partition, TopicInfo
from state.store.rocksdb import pairs_on_disk
from workers.same_topics import TOPIC_IDS

CHUNK = 1_000
_WAIT_MS = 500
_TAKING = b"is being taken: "  # in place of the id of a topic, which is no other's


@dataclass(frozen=True, slots=True)
class _Found:
    """The store whose entries are written: to which partition, and where it lies; keys of what was left there, and of what was written
    back from another store since."""

    partition: Partition
    path: Path
    left: set[bytes]
    before: set[bytes]


async def take_as_it_is(
    log: GroupLog, lease: Lease, described: Mapping[str, Any], topic: TopicInfo, state: Path
) -> int:
    """Goes on with what the changelog `topic` has; returns how many entries of stores below `state`, the application's folder,
    were written to it. Raises DirectoryLocked where an instance has one open, LeaseLost,
    RefusedBySafety."""
    application = lease.application
    tables = [(name, facts) for name, facts in described["tables"].items() if facts["changelog_topic"] == topic.name]
    partitions = [Partition(topic.name, number) for number in range(topic.partitions)]
    starts, ends = await log.starts(partitions), await log.ends(partitions, settled=True)
    based = base.of_topic(await log.metadata_of(application, base.BASE), topic)
    if not tables or not any(starts.values()) or based is not None:
        return 0
    known = taken(await log.metadata_of(application, STARTS), topic)
    ran_on = await log.metadata(application, TOPIC_IDS, topic.name)
    time = _time_of(ran_on)
    has_started = ran_on is not None and (not time or time != known.time)  # since it was taken before
    (table, facts), judge = tables[0], await left_stores(log, application, [topic.name])
    found: list[_Found] = []
    stores, first_ends = dict(known.stores), dict(known.ends)
    with ExitStack() as locks:
        for one, start in sorted(starts.items()):
            if not start:
                continue
            if start <= known.starts.get(one.number, 0) and (has_started or one.number not in first_ends):
                first_ends.pop(one.number, None)  # the app has gone on since, and no store elsewhere counts any more
                continue
            if has_started or one.number not in stores:
                stores.pop(one.number, None)
                first_ends[one.number] = ends[one]
            task = f"{facts['subtopology']}_{one.number}"
            best = _newest(state, task, table, one, judge)
            if best is None or best[0] <= stores.get(one.number, 0):
                continue
            stores[one.number] = best[0]
            locks.enter_context(best[1].lock(task))
            left = await _keys(log, one, start, first_ends[one.number])
            before = await _keys(log, one, max(start, first_ends[one.number]), ends[one])
            found.append(_Found(one, best[2], left, before - left))
        time = time or (secrets.token_hex(8) if has_started else known.time)
        begun = {one.number: start for one, start in starts.items() if start}
        after = Taken(topic.topic_id, begun, stores, first_ends, time)
        if msgspec.structs.replace(after, time=known.time) == known:
            return 0
        note = AppMetadata(application, STARTS, topic.name, msgspec.json.encode(after))
        counts: dict[Partition, int] = {}
        now_ms = wall_ms()

        def parts() -> Iterator[Mapping[Partition, Sequence[NewRecord]]]:
            for one in found:
                counts[one.partition] = 0
                for chunk in _entries(one, now_ms):
                    counts[one.partition] += len(chunk)
                    yield {one.partition: chunk}

        # Until the ids that the app ran on are forgotten, behind what is written, it does not start; and a command that is cut off
        # between the two is not taken for a start since, for which nothing would be written back any more.
        if has_started:
            await log.put_metadata(application, TOPIC_IDS, topic.name, _TAKING + time.encode())
        if not await log.seed_positions(lease, {}, {}, metadata=[note], parts=parts):
            await log.put_metadata(application, TOPIC_IDS, topic.name, ran_on)
            raise RefusedBySafety(
                f"'{application}' was begun meanwhile, and nothing was written; stop it, and run the command again"
            )
    return sum(counts.values())


def _time_of(ran_on: bytes | None) -> str:
    """At which time the topic is being taken, where that began."""
    return ran_on.removeprefix(_TAKING).decode() if ran_on is not None and ran_on.startswith(_TAKING) else ""


def _newest(
    state: Path, task: str, table: str, partition: Partition, judge: LeftStores
) -> tuple[int, StateDirectory, Path] | None:
    """The store of this machine that has most of its changelog, and is of it."""
    best: tuple[int, StateDirectory, Path] | None = None
    for name in sorted(path.name for path in state.glob("*/") if (path / task / table).is_dir()):
        directory = StateDirectory(state.parent, state.name, name)
        seen = directory.tables(task).get(table)
        if seen is None or seen.peek is None or not seen.peek.offset or judge.problem(partition, seen.peek) is not None:
            continue
        if best is None or seen.peek.offset > best[0]:
            best = seen.peek.offset, directory, seen.path
    return best


async def _keys(log: GroupLog, partition: Partition, position: int, end: int) -> set[bytes]:
    """Of the records between these offsets."""
    keys: set[bytes] = set()
    reader = log.reader()
    try:
        reader.add(partition, position)
        while position < end:
            for fetched in await reader.poll(wait_ms=_WAIT_MS):
                records = decode(fetched.data, fetched.position) if fetched.data else ()
                keys.update(record.key or b"" for record in records if position <= record.offset < end)
                position = fetched.next_position
    finally:
        await reader.close()
    return keys


def _entries(found: _Found, now_ms: int) -> Iterator[list[NewRecord]]:
    """What the store has, and deletions of what another one had and this one has not."""
    chunk: list[NewRecord] = []
    gone = set(found.before)
    for key, value in pairs_on_disk(found.path, b"", None):
        gone.discard(key)
        if key not in found.left:
            chunk.append(NewRecord(key, value, now_ms))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    chunk += [NewRecord(key, None, now_ms) for key in sorted(gone)]
    if chunk:
        yield chunk
