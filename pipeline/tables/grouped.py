"""A table of bytes whose keys are in groups: all keys of a group are read at the cost of the group.

One rule: a key is its group, with the group's length before it, then the member. Used by joins by foreign keys: the group is
the foreign key, the members are the rows that have it.
"""

from __future__ import annotations

from pipeline.tables.table import StoreView, TableSpec, after_prefix
from pipeline.tables.view import TableView

_LENGTH_BYTES = 4
_MOST_FRESH = 10_000


class GroupedTable(TableView[bytes, bytes]):
    """See the module. Writes count with the unit that is open."""

    def __init__(self, spec: TableSpec, store: StoreView) -> None:
        super().__init__(spec, store)
        self._fresh: dict[bytes, set[bytes]] = {}  # by group: keys that the store may not have as they are, and others

    def put(self, group: bytes, member: bytes, value: bytes | None, timestamp_ms: int) -> None:
        head = _head(group)
        key = head + member
        self._fresh.setdefault(head, set()).add(key)
        self.layers.put({key: value}, timestamp_ms)

    def members(self, group: bytes) -> list[tuple[bytes, bytes]]:
        """The members of a group with their values, in order."""
        head = _head(group)
        found: dict[bytes, bytes | None] = dict(self._store.range(head, after_prefix(head)))
        for key in self._fresh.get(head, ()):
            if key in self._known:
                found[key] = self._known[key]
        return [(key[len(head) :], value) for key, value in sorted(found.items()) if value is not None]

    def mark_applied(self) -> None:
        super().mark_applied()
        if len(self._fresh) > _MOST_FRESH:
            self._fresh = {}
            for key in self.layers.keys():  # noqa: SIM118 - of layers, not of a dict
                self._fresh.setdefault(key[: _end_of_head(key)], set()).add(key)


def _head(group: bytes) -> bytes:
    return len(group).to_bytes(_LENGTH_BYTES, "big") + group


def _end_of_head(key: bytes) -> int:
    return _LENGTH_BYTES + int.from_bytes(key[:_LENGTH_BYTES], "big")
