"""Tables whose changes are observed: a join of tables is called for each of them.

One rule: a change is noted where it counts with its call, and read once. A row is a key's value as bytes, with its time.
Written by `view`'s calls and by the records of a topic's table; read by `pipeline/calls/table_joins.py`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from pipeline.tables.view import TableView

K = TypeVar("K")
V = TypeVar("V")


class Row(NamedTuple):
    """The value of a key, and its time in ms: that of the record or call that wrote it, where it is known, else -1."""

    value: bytes
    timestamp_ms: int


class RowChange(NamedTuple):
    """What became of a key, at which time."""

    key: bytes
    before: Row | None
    after: Row | None
    timestamp_ms: int


class ObservedTable(TableView[K, V]):
    """A table of the app whose changes wait in `changed`. `at_ms` is the time of the call that has it."""

    at_ms = 0
    change: RowChange | None = None  # no record of a topic makes one

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.changed: list[RowChange] = []

    def row(self, key: bytes) -> Row | None:
        """The row of a key's bytes, as completed calls left it."""
        raw = self._stored(key)
        return None if raw is None else Row(raw, -1)

    def apply(self, changes: dict[bytes, bytes | None], timestamp_ms: int) -> None:
        for key, after in changes.items():
            new = None if after is None else Row(after, self.at_ms)
            self.changed.append(RowChange(key, self.row(key), new, self.at_ms))
        super().apply(changes, timestamp_ms)
