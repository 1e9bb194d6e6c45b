"""Bringing a store up to its changelog, and judging whether what is on a disk may be trusted at all.

One rule: progress is a position, never a count of records. A fetch moves the offset to where the fetch ends, also when
it brought nothing but markers; the store is level when its offset has reached the end, whatever it has counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from state.errors import StateError
from state.log.batches import last_values
from state.log.protocol import Fetched
from state.store.protocol import Store

LEADER_EPOCH = "leader_epoch"  # in a store's stamp: of the leader that wrote the last of it, where there are elections
PARTITION = "partition"  # in a store's stamp: of its changelog; stores of versions before have none
SHORT = (
    "what those records changed is missing from the table from now on, unless the positions of its inputs went back with them: "
    "`orchestrator audit` shows what is missing, and `orchestrator reset` builds the table anew"
)  # where positions lie elsewhere than a changelog (Kafka), and may stay where they were
CHUNK = 2_000  # changes per store write: about 4 ms during which nothing else in the process runs


def chunks(store: Store, fetched: Fetched, *, chunk: int = CHUNK) -> Iterator[int]:
    """Apply a fetch to its store, last write of each key only, sorted.

    Yields 0 when the fetch is decoded, then the number of changes after each write: places to let others run.
    The offset moves with the last write: after a crash in between, the same fetch is applied again, to the same end.
    Raises StateError.
    """
    if fetched.position != store.offset:
        raise StateError(
            f"the store stands at {store.offset} of {fetched.partition} and was given what follows "
            f"{fetched.position}: read its changelog from {store.offset} on"
        )
    changes = last_values(fetched.data, fetched.position) if fetched.data else {}
    if fetched.epoch >= 0:
        store.mark(LEADER_EPOCH, str(fetched.epoch))
    yield 0
    if len(changes) <= chunk:
        store.write(changes, fetched.next_position, is_whole=False)
        yield len(changes)
        return
    before, keys = store.offset, sorted(changes)
    for start in range(0, len(keys), chunk):
        part = keys[start : start + chunk]
        is_last = start + chunk >= len(keys)
        values = list(map(changes.__getitem__, part))
        store.write_in_order(part, values, fetched.next_position if is_last else before)
        yield len(part)


def apply(store: Store, fetched: Fetched) -> int:
    """`chunks` at once, where no event loop waits; returns the number of keys changed."""
    return sum(chunks(store, fetched))


async def replay(store: Store, fetched: Fetched) -> int:
    """`chunks` with a turn of the event loop after each; returns the number of keys changed."""
    changed = 0
    for count in chunks(store, fetched):
        changed += count
        await asyncio.sleep(0)
    return changed


def misplaced(stamp: Mapping[str, str], number: int) -> str | None:
    """Returns why a store is not of this partition of its changelog; None where it is, or where its stamp names none."""
    known = stamp.get(PARTITION)
    if known in (None, str(number)):
        return None
    return f"it is of partition {known} of its changelog, not of {number}: its folder was copied or renamed"


def foreign(offset: int, stamp: Mapping[str, str], *, log_id: str, topic_id: str, end: int) -> str | None:
    """Why a store is not of this changelog, whatever is asked of it, or None where it is."""
    if stamp.get("log_id") != log_id:
        return f"it belongs to another log ({stamp.get('log_id') or 'unknown'}, this is {log_id})"
    if stamp.get("topic_id") != topic_id:
        return f"its changelog was deleted and made again, or has another prefix ({stamp.get('topic_id') or 'unknown'}, now {topic_id})"
    if offset > end:
        return f"it stands at {offset}, past the end {end} of its changelog: the log lost records it has"
    return None


def usable(
    offset: int,
    stamp: Mapping[str, str],
    *,
    log_id: str,
    topic_id: str,
    start: int,
    end: int,
    delete_retention_ms: int,
    now_ms: int,
    forgotten: int = 0,
    positions_stay: bool = False,
) -> str | None:
    """Why a store (or a snapshot) may not be used for this changelog, or None where it may.

    `start` and `end` are the changelog's, and so is `forgotten` (see `Log.forgotten`): that holds whatever clocks say.
    `positions_stay`: where the log loses records of a changelog, positions may lie behind what they were of. An unusable store is wiped and restored, and this text is the message.
    """
    if (why := foreign(offset, stamp, log_id=log_id, topic_id=topic_id, end=end)) is not None:
        is_ahead = foreign(0, stamp, log_id=log_id, topic_id=topic_id, end=end) is None
        return f"{why}; {SHORT}" if is_ahead and positions_stay else why
    time_ms = int(stamp.get("time_ms", "0"))
    if offset == end or (offset == 0 and time_ms == 0):
        return None  # it holds all, or nothing; at 0 it may also hold a part of the first fetch
    if 0 < offset < start:
        return f"it stands at {offset}, and its changelog begins at {start}"
    if 0 < offset < forgotten:
        return f"it stands at {offset}, and deletions before {forgotten} are in its changelog no more"
    age_ms = now_ms - time_ms
    if age_ms > delete_retention_ms:
        return (
            f"it last held all of its changelog {age_ms // 3_600_000} hours ago, and deletions are remembered for "
            f"{delete_retention_ms // 3_600_000} hours"
        )
    if age_ms < -delete_retention_ms // 8:
        return f"by its stamp it last held all of its changelog {-age_ms // 3_600_000} hours from now: how old it is is not known"
    return None
