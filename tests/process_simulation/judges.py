"""The judges of a life: outputs by id, tables by key, stores against their changelogs, and that it came to rest.

One rule: a judge compares with the oracle or with the log, never with what a process says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from state.log.batches import decode
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TaskCommit
from tests.process_simulation.apps import Expected, Payment
from tests.process_simulation.disk import Disk


class Broken(Exception):
    """A life that did not hold; the text begins with the kind and a colon."""


class Receipts:
    """Follows every commit: what was put out so far, and which inputs the positions say are done."""

    def __init__(self, application: str, *, repeats: bool = False) -> None:
        self.application = application
        self.repeats = repeats  # at least once: what no positions have passed may be put out again
        self.passed: set[int] = set()
        self.sent: dict[Partition, list[tuple[int, int]]] = {}
        self.out: Counter[int] = Counter()
        self.letters: Counter[int] = Counter()
        self.may_be_left_out: set[int] = (
            set()
        )  # records whose trouble a policy, or an operator, answers with leaving them out
        self.done: dict[Partition, int] = {}
        self.history: dict[Partition, list[tuple[int, NewRecord]]] = {}  # of changelogs; compaction removes nothing

    def produced(self, partition: Partition, rows: Sequence[tuple[int, int]]) -> None:
        self.sent.setdefault(partition, []).extend(rows)

    def committed(self, parts: Sequence[TaskCommit], ends: Mapping[Partition, int]) -> str | None:
        """What is wrong with a commit that the log has taken; None where nothing is."""
        wrong = self._take(parts, ends)
        return wrong or self.positioned(parts)

    def _take(self, parts: Sequence[TaskCommit], ends: Mapping[Partition, int]) -> str | None:
        before = Counter(self.out)
        for part in parts:
            for partition, records in part.records.items():
                if partition.topic == "receipts":
                    self._count(records)
                elif partition.topic == "letters":
                    self.letters.update(payment_id(record.value) for record in records)
                elif partition.topic.endswith("-changelog"):
                    rows = [(ends[partition], record) for record in records]
                    self.history.setdefault(partition, []).extend(rows)
        return self._wrong(before)

    def written(self, parts: Sequence[TaskCommit], ends: Mapping[Partition, int]) -> str | None:
        """The records of a commit at least once. They may be put out again as long as no positions say that they are done."""
        return self._take(parts, ends)

    def _wrong(self, before: Counter[int]) -> str | None:
        if self.repeats:
            doubled = sorted(number for number in (self.out - before) if number in self.passed)
        else:
            doubled = sorted(number for number, times in (self.out + self.letters).items() if times > 1)
        if doubled:
            return f"doubled: {_some(doubled)} were put out again"
        wrong = sorted(self.letters.keys() - self.may_be_left_out)
        if wrong:
            return f"letters: nothing is wrong with {_some(wrong)}"
        return None

    def positioned(self, parts: Sequence[TaskCommit]) -> str | None:
        """The positions of a commit: what lies before them was put out, and is not to be put out again."""
        if self.application == "shopping":
            return None  # between its inputs and outputs lies a topic of its own
        for part in parts:
            for partition, position in part.positions.items():
                lost = self._passed(partition, position)
                if lost:
                    return f"lost: task {part.scope} commits position {position} of {partition} without {_some(lost)}"
        return None

    def repeated(self) -> dict[int, int]:
        """Where that is allowed: what was put out more than once, and how often it was put out again."""
        return {number: times - 1 for number, times in self.out.items() if times > 1} if self.repeats else {}

    def missing_before(self, topic: str, number: int, offset: int) -> list[int]:
        """Records of an input before an offset that were not put out."""
        rows = self.sent.get(Partition(topic, number), [])
        before = [record for at, record in rows if at < offset]
        return [r for r in before if not self.out[r] and not self.letters[r] and r not in self.may_be_left_out]

    def _count(self, records: Sequence[NewRecord]) -> None:
        for record in records:
            assert record.value is not None
            self.out[int.from_bytes(record.value, "big", signed=True)] += 1

    def _passed(self, partition: Partition, position: int) -> list[int]:
        rows, done = self.sent.get(partition, []), self.done.get(partition, 0)
        lost = []
        while done < len(rows) and rows[done][0] < position:
            number = rows[done][1]
            if not self.out[number] and not self.letters[number] and number not in self.may_be_left_out:
                lost.append(number)
            self.passed.add(number)
            done += 1
        self.done[partition] = done
        return lost


def payment_id(value: bytes | None) -> int:
    assert value is not None
    return msgspec.json.decode(value, type=Payment).id


def final(
    log: MemoryLog,
    application: str,
    partitions: int,
    wanted: Expected,
    repeated: Collection[int] = (),
    before: Mapping[str, int] = MappingProxyType({}),
) -> str | None:
    """What is wrong at the end of a life. `partitions`: of the changelogs; `repeated`: what may be there more than once;
    `before`: what the changelogs go on from."""
    found: Counter[int] = Counter()
    for record in _read(log, "receipts", log._topics["receipts"].partitions):
        found[int.from_bytes(record.value, "big", signed=True)] += 1
    lost = sorted(wanted.ids - found.keys())
    doubled = sorted(number for number, times in found.items() if times > 1 and number not in repeated)
    if lost or doubled:
        return f"outputs: lost {_some(lost)}, doubled {_some(doubled)}"
    if not wanted.balances:
        return None
    changelog = f"{application}-balances-changelog"
    last: dict[str, int] = dict(before)
    for record in _read(log, changelog, partitions):
        if record.value is None:
            last.pop(record.key.decode(), None)
        else:
            last[record.key.decode()] = int.from_bytes(record.value, "big", signed=True)
    wrong = sorted(key for key in wanted.balances.keys() | last.keys() if wanted.balances.get(key) != last.get(key))
    if wrong:
        return f"tables: {_some(wrong)} differ from the oracle"
    return None


def stores(disk: Disk, changelog: str, history: Mapping[Partition, Sequence[tuple[int, NewRecord]]]) -> str | None:
    """Every table on every disk must be its changelog up to its offset."""
    for path, table in disk.tables.items():
        if table.damaged:
            continue
        partition = Partition(changelog, int(path.parent.name.partition("_")[2]))
        last = {record.key: record.value for at, record in history.get(partition, ()) if at <= table.offset}
        expected = {key: value for key, value in last.items() if value is not None}
        if expected != table.values:
            wrong = sorted(k for k in expected.keys() | table.values.keys() if expected.get(k) != table.values.get(k))
            return f"stores: {path} at {table.offset} differs from {partition} in {_some(wrong)}"
    return None


def _read(log: MemoryLog, topic: str, partitions: int) -> list[Any]:
    return [record for number in range(partitions) for record in records_of(log, Partition(topic, number))]


def records_of(log: MemoryLog, partition: Partition) -> list[Any]:
    part = log.part(partition)
    fetched = part.fetch(partition, part.start, 1 << 40)
    return [] if fetched is None or not fetched.data else list(decode(fetched.data, part.start))


def _some(items: Sequence[Any]) -> str:
    shown = ", ".join(map(str, items[:8]))
    return f"[{shown}{', ...' if len(items) > 8 else ''}] ({len(items)})"
