"""The base of a changelog: a snapshot that it goes on from, so that it is not whole without it.

One rule: what a base says is written in the transaction that makes its changelogs need it, and from then on no process
reads such a changelog from its beginning: the entries before it are in the snapshot and nowhere else. So the snapshot
is never pruned, and compaction never forgets a deletion, which may be of an entry of the snapshot.
Kept as metadata of kind BASE under the name of the topic. A marker stands in the changelog in place of the
entries, so that a store that has none of them (position 0) is distinguished from one that has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from state.errors import BaseMissing, StateError
from state.log.group_store import MetadataKind
from state.log.protocol import NewRecord, TopicInfo

BASE = MetadataKind("changelog-base", under_lease=True)
OFFSET = 1  # where a changelog goes on: behind its marker
FOR_EVER_MS = 1 << 62


class Base(msgspec.Struct, frozen=True):
    """What the changelog with this id goes on from, at `offset`."""

    snapshot: str
    topic_id: str
    offset: int = OFFSET


def marker(time_ms: int) -> NewRecord:
    """Takes the first offset of a changelog. A deletion, so that Kafka compacts it like any; it is never replayed."""
    return NewRecord(b"", None, time_ms)


def encode(base: Base) -> bytes:
    return msgspec.json.encode(base)


def decode(data: bytes) -> Base:
    """Raises StateError for metadata that cannot be read."""
    try:
        return msgspec.json.decode(data, type=Base)
    except msgspec.MsgspecError as error:
        raise StateError(f"the log's metadata of a base is damaged ({error}): restore the log from a backup") from error


def of_topic(metadata: Mapping[str, bytes], topic: TopicInfo) -> Base | None:
    """The base of a topic; None also where the topic was deleted and made again since."""
    data = metadata.get(topic.name)
    found = None if data is None else decode(data)
    return found if found is not None and found.topic_id == topic.topic_id else None


def stands_on_one(values: Iterable[bytes], topic: TopicInfo) -> bool:
    """Whether any of these values, kept under the name of a topic, is of this topic."""
    return any(of_topic({topic.name: value}, topic) is not None for value in values)


def needed(offset: int, base: Base | None) -> str | None:
    """Why a changelog with this base cannot be replayed into a store at `offset`, or None where it can."""
    if base is None or offset >= base.offset:
        return None
    return f"its changelog goes on from snapshot {base.snapshot}, and a replay alone would miss what that holds"


def missing(what: str, base: Base, why: str, root: Path | None = None) -> BaseMissing:
    """`root`: the folder of snapshots that was looked at."""
    found = root is not None and (root / base.snapshot).is_dir()
    advice = (
        f"it is damaged: restore {root}/{base.snapshot} from a backup"
        if found
        else "name its folder with --snapshots, or put it back"
    )
    return BaseMissing(
        f"{what} goes on from snapshot {base.snapshot} of a backfill with --snapshot-only, and {why}; {advice}; without it "
        "entries would be missing"
    )
