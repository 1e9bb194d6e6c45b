"""Which history of a log a store belongs to: a log that was restored from an older backup goes on as another one.

One rule: offsets tell how far a store is, never of which history. Each coordinator begins its term with an entry in the
log: a random id, and where each changelog ended then. A store, or a snapshot, is stamped with the id of the newest entry it was written
under. It belongs to this log if the entry is there, and it had not gone beyond where the entry after it began. What
follows an older backup begins with an entry of its own, so a store that had gone further is found, and restored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from state.log.group_store import GroupStore, Lease, MetadataKind
from state.log.protocol import GroupLog, Partition

HISTORY = MetadataKind("history", under_lease=True)
KEPT = 20  # entries; a store that was written under none of them is restored. One that is open is stamped with each
OLD = KEPT // 4  # entries, after which the stamp of a store that nothing is written to is written to the disk
STAMP = "history"


class Beginning(msgspec.Struct, frozen=True):
    """A term's entry: `ends` has the end of each changelog partition (`name-3`) when it began."""

    id: str
    ends: dict[str, int]


class History:
    """The entries that a log has, oldest first."""

    def __init__(self, entries: Sequence[Beginning] = ()) -> None:
        self._entries = list(entries)

    @property
    def id(self) -> str:
        """What stores are stamped with now; "" before the first term."""
        return self._entries[-1].id if self._entries else ""

    def is_old(self, stamped: str) -> bool:
        """Whether this stamp would soon be none of those that are kept."""
        return bool(stamped) and all(entry.id != stamped for entry in self._entries[-OLD:])

    def problem(self, stamped: str, partition: Partition, offset: int) -> str | None:
        """Why a store of this partition, stamped so and standing at `offset`, is of another history; None where it is of
        this one. A store without a stamp is of a version that had none: it is taken as it is."""
        if not stamped or not offset:
            return None
        for number, entry in enumerate(self._entries):
            if entry.id != stamped:
                continue
            if number + 1 == len(self._entries):
                return None
            end = self._entries[number + 1].ends.get(str(partition), offset)
            if offset <= end:
                return None
            return (
                f"it stands at {offset}, and the log went on from {end} without what it has: the log was restored from an "
                "older copy"
            )
        left_behind = f", or more than {KEPT} coordinators have come since" if len(self._entries) >= KEPT else ""
        return f"it was written with another history of this log: the log was restored from an older copy{left_behind}"


async def read(store: GroupStore, application: str) -> History:
    """The history as the log has it."""
    found = await store.metadata_of(application, HISTORY)
    return History([msgspec.json.decode(found[key], type=Beginning) for key in sorted(found)])


async def begin(log: GroupLog, lease: Lease, changelogs: Collection[Partition], new_id: str) -> None:
    """Write the entry of a term, before its coordinator acts. Raises LeaseLost. Ends are those of all that is written: a
    worker that died within a transaction is fenced by this coordinator, so it must not wait for that one."""
    ends = await log.written(changelogs)
    entry = Beginning(new_id, {str(partition): end for partition, end in sorted(ends.items())})
    await log.put_metadata(lease.application, HISTORY, f"{lease.term:012d}", msgspec.json.encode(entry), lease=lease)
    kept = sorted(await log.metadata_of(lease.application, HISTORY))
    for key in kept[:-KEPT]:
        await log.put_metadata(lease.application, HISTORY, key, None, lease=lease)
