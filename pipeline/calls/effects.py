"""What the completed records of a task did since the last take: outputs, counts, positions and writes of tables.

One rule: they leave together. `take()` gives exactly what completed records did, with the positions after those
records, so a commit can never hold the one without the other. Several calls that count only together are a unit:
until `complete` nothing of it is collected, and `undo` takes it back. TaskProcess fills it; the steps put what they send
into `outputs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pipeline.records import OutputRecord, RawRecord
from pipeline.tables.view import TableView
from pipeline.time.timed_view import TimedView

Place = tuple[str, int]


class LeftOut(NamedTuple):
    """A call that left its record out. `why`: what failed and where, if the policy is to skip; an operator's own skip says ""."""

    topic: str
    is_dead_letter: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a task wants committed: records for topics, writes of tables (last per key, None deletes), and the offset
    after the last completed record of each topic that moved. `processed`: how many records are completed, by topic;
    `left_out`: the calls that left their record out."""

    outputs: dict[Place, list[OutputRecord]]
    writes: dict[str, dict[bytes, bytes | None]]
    write_timestamp_ms: dict[str, int]
    positions: dict[str, int]
    processed: Mapping[str, int]
    left_out: Sequence[LeftOut]
    stream_time_ms: int
    late: Mapping[str, int]  # records that came when all was closed for them, by table or join
    gone: Mapping[str, Sequence[tuple[bytes, bytes]]]  # ranges of tables of which `writes` deletes all that was there

    @property
    def records_in(self) -> int:
        return sum(self.processed.values())

    @property
    def skipped(self) -> int:
        return len(self.left_out) - self.dead_lettered

    @property
    def dead_lettered(self) -> int:
        return sum(one.is_dead_letter for one in self.left_out)


class UnitOfTime(Protocol):
    """How far time has come, which counts, or does not, with the unit (`pipeline.calls.passing`)."""

    def settle(self) -> None: ...
    def undone(self) -> None: ...
    def stand_at(self, timestamp_ms: int) -> None: ...
    def collected(self) -> None: ...
    def applied(self) -> None: ...


class Effects:
    """See the module text. `units`: calls of one record, or of one run, count only together."""

    def __init__(
        self,
        tables: Mapping[str, TableView[Any, Any]],
        partitions: Mapping[str, int],
        *,
        units: bool,
        stream_time_ms: int,
    ) -> None:
        self.partitions = partitions  # the counts of the topics that are written to
        self.outputs: dict[Place, list[OutputRecord]] = {}
        self.left_out: list[LeftOut] = []
        self.stream_time_ms = stream_time_ms
        self._tables = tables
        self._timed = {name: table for name, table in tables.items() if isinstance(table, TimedView)}
        self._done: dict[Place, list[OutputRecord]] = {} if units else self.outputs
        self._before = 0  # how many of `left_out` are of before the open unit
        self._late: dict[str, int] = {}
        self._late_before: dict[str, int] = {}
        self.passing: UnitOfTime | None = None
        self._due = False  # a due call was completed since the last take
        self._positions: dict[str, int] = {}
        self._processed: Counter[str] = Counter()
        self.reached: dict[str, int] = {}  # of each topic the offset after the last completed record, collected or not

    # a unit

    def begin(self) -> None:
        """What is done from now on counts with `complete`, or not at all."""
        self._before = len(self.left_out)
        if self._late:
            self._late_before = dict(self._late)
        for table in self._tables.values():
            table.layers.begin_unit()

    def end(self) -> None:
        """The open unit counts. Its records are completed next."""
        for place, records in self.outputs.items():
            self._done.setdefault(place, []).extend(records)
        self.outputs.clear()
        self._before = len(self.left_out)
        if self._late:
            self._late_before = dict(self._late)
        for table in self._tables.values():
            table.layers.end_unit()
        if self.passing is not None:
            self.passing.settle()

    def undo(self) -> None:
        """The open unit never was."""
        del self.left_out[self._before :]
        self._late = dict(self._late_before)
        self.outputs.clear()
        for table in self._tables.values():
            table.layers.undo_unit()
        if self.passing is not None:
            self.passing.undone()

    # completed records

    def skipped_one(self, topic: str) -> None:
        """A record is left out, outside of any unit."""
        self.left_out.insert(self._before, LeftOut(topic, False))
        self._before += 1

    def late_one(self, name: str) -> None:
        """A record is late for a table or join."""
        self._late[name] = self._late.get(name, 0) + 1

    @property
    def has_completed(self) -> bool:
        return bool(self._positions) or self._due or any(view.leaves_expired for view in self._timed.values())

    def time_passed(self, stream_time_ms: int) -> None:
        """Time has come to here without a record, or a due call is completed."""
        self._due = True
        self.stream_time_ms = max(self.stream_time_ms, stream_time_ms)
        if self.passing is not None:
            self.passing.stand_at(stream_time_ms)

    def completed(self, topic: str, record: RawRecord) -> None:
        """All calls of this record have ended well, and of those before it in its topic."""
        self._positions[topic] = self.reached[topic] = record.offset + 1
        self._processed[topic] += 1
        if record.timestamp_ms > self.stream_time_ms:
            self.stream_time_ms = record.timestamp_ms

    def all_completed(
        self, records: Sequence[tuple[str, RawRecord]], stream_time_ms: int, *, is_one_topic: bool
    ) -> None:
        """The same for many records at once, the newest of which brought the stream time to `stream_time_ms`."""
        if not records:
            return
        for topic, record in records[-1:] if is_one_topic else records:
            self._positions[topic] = record.offset + 1
        self.reached.update(self._positions)
        self._processed.update({records[0][0]: len(records)} if is_one_topic else Counter(t for t, _ in records))
        self.stream_time_ms = max(self.stream_time_ms, stream_time_ms)

    def completed_of_one(self, topic: str, next_offset: int, count: int, stream_time_ms: int) -> None:
        """The same for `count` records of one topic, the last of which lies before `next_offset`."""
        self._positions[topic] = self.reached[topic] = next_offset
        self._processed[topic] += count
        self.stream_time_ms = max(self.stream_time_ms, stream_time_ms)

    def collect(self, *, in_parts: bool = False) -> Changes:
        """Everything that completed records did since the last take. `in_parts`: with some of what has expired; as long as it
        leaves the rest, `has_completed` stays True."""
        for view in self._timed.values():
            view.in_parts = in_parts
        if self.passing is not None:
            self.passing.collected()
        collected = {name: table.collect(self.stream_time_ms) for name, table in self._tables.items()}
        left_out = self.left_out[: self._before] if self._done is not self.outputs else list(self.left_out)
        late = self._late_before if self._done is not self.outputs else self._late
        changes = Changes(
            outputs=dict(self._done),
            writes={name: writes for name, (writes, _) in collected.items() if writes},
            write_timestamp_ms={name: at_ms for name, (writes, at_ms) in collected.items() if writes},
            positions=self._positions,
            processed=self._processed,
            left_out=left_out,
            stream_time_ms=self.stream_time_ms,
            late=late,
            gone={name: gone for name, view in self._timed.items() if (gone := view.take_gone())},
        )
        self._late = {
            name: count - late.get(name, 0) for name, count in self._late.items() if count != late.get(name, 0)
        }
        self._late_before, self._due = {}, False
        self._done.clear()
        self._positions, self._processed = {}, Counter()
        del self.left_out[: len(left_out)]
        self._before = 0
        return changes

    def mark_applied(self) -> None:
        """The stores have what the oldest take that was not settled gave."""
        if self.passing is not None:
            self.passing.applied()
        for table in self._tables.values():
            table.mark_applied()
