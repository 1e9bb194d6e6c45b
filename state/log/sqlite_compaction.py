"""The compaction of a changelog in a SQLite log: partition by partition, in short transactions and off the loop.

One rule: what lies behind the last pass is surveyed, and never more than so many keys at once. What a pass went through has
each key once, so it is only read again, for what later records have overwritten: a changelog of any size is compacted in the
same memory (as Kafka's cleaner, whose map of offsets has a size). Asked for by `state.log.sqlite`; what stays,
`state.log.compaction` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from state.log import compaction, sqlite_reader
from state.log.protocol import Compacted, Partition
from state.log.sqlite_time import LogTime
from state.log.sqlite_upkeep import Upkeep
from state.log.sqlite_writer import find_part

T = TypeVar("T")

KEYS_AT_ONCE = 1_000_000  # about 200 MB of them


class Way(Protocol):
    """How a log runs work in one of its threads."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class Compaction:
    """Of one log. `remove` is a transaction of upkeep, `write` any other."""

    def __init__(
        self,
        read: sqlite_reader.Read,
        write: Way,
        remove: Way,
        upkeep: Upkeep,
        time: LogTime,
        delete_retention_ms: int,
    ) -> None:
        self._read = read
        self._write = write
        self._remove = remove
        self._upkeep = upkeep
        self._time = time
        self._delete_retention_ms = delete_retention_ms

    async def run(self, partition: Partition, *, stands_on_base: bool) -> Compacted:
        """Deletions of a changelog that stands on a base stay for ever. Raises UnknownTopic."""
        found = await self._read(lambda db: find_part(db, partition))
        part, end = found.id, found.end  # what is written meanwhile is the next pass's: it may come for ever
        passes = await self._read(partial(sqlite_reader.compactions, part=part))
        retention_ms = self._delete_retention_ms
        forgotten = 0 if stands_on_base else compaction.forgotten_below(passes, self._time.now_ms() - retention_ms)
        through, removed, is_whole = compaction.cleaned_through(passes), 0, False
        while not is_whole:
            last, through = await self._survey(part, through, end)
            is_whole = through >= end
            done, there, goes_on = await self._rewrite(part, last, forgotten, through)
            removed += done
            if not goes_on:  # another process compacts the same partition: leave it to it
                return Compacted(removed, there - done)
        made = compaction.with_pass(passes, compaction.Pass(through, self._time.now_ms()), retention_ms)
        if made != passes and self._time.is_sure():
            await self._write(partial(self._upkeep.compacted, part, made))
        return Compacted(removed, there - done)

    async def _survey(self, part: int, begin: int, end: int) -> tuple[dict[bytes, int], int]:
        """The last offset of each key from `begin` on, and the offset that it went to: `end`, about, or where it held enough of them."""
        last: dict[bytes, int] = {}
        through = begin
        position = await self._read(partial(sqlite_reader.base_of, part=part, position=begin))
        while through < end and (through == begin or len(last) < KEYS_AT_ONCE):
            rows = await self._read(partial(sqlite_reader.rows, part=part, from_base=position))
            if not rows:
                return last, end  # what lay there was removed
            last.update(await asyncio.to_thread(compaction.survey, rows))
            position = rows[-1].next
            through = max(through, position)
        return last, through

    async def _rewrite(
        self, part: int, last: Mapping[bytes, int], forgotten: int, through: int
    ) -> tuple[int, int, bool]:
        """Removes what was overwritten below `through`. Returns how many records, of how many, and whether all of it
        could be done."""
        removed = there = position = 0
        merge_ms = max(self._delete_retention_ms // 8, 1)
        while position < through and (
            rows := await self._read(partial(sqlite_reader.rows, part=part, from_base=position))
        ):
            count, todo = await asyncio.to_thread(
                lambda rows: (compaction.count(rows), list(compaction.rewrites(rows, last, forgotten, merge_ms))), rows
            )
            there += count
            while todo:
                applied = await self._remove(partial(self._upkeep.replace, part, todo, forgotten))
                if applied is None:
                    return removed, there, False
                removed += sum(rewrite.removed for rewrite in todo[:applied])
                todo = todo[applied:]
            position = rows[-1].next
        return removed, there, True
