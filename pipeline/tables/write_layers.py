"""What was written to a table of a task and is not in its store yet: the layers between the store and the running call.

One rule: `take()` hands out the writes of ended units alone, once, and they stay visible until `settle()` says that the
store has them. Writes of an open unit count together or not at all. TableView reads and fills it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Writes = dict[bytes, bytes | None]

_MISSING: Final[Any] = object()
_CACHED_KEYS = 10_000


class WriteLayers:
    """`known` has the stored bytes of every key in a layer but of those of `put_unknown`
    and `put_one_unknown`, and of some that the store was asked for."""

    def __init__(self) -> None:
        self.known: Writes = {}
        self.write_timestamp_ms = -1
        self.most_known = _CACHED_KEYS
        self.forgets_deleted = False  # what was deleted is not asked for again
        self._pending: Writes = {}
        self._collected: list[Writes] = []
        self._deleted: list[
            bytes
        ] = []  # keys of `_pending` that were deleted, where these are forgotten; some more than once
        self._collected_deleted: list[list[bytes]] = []
        self._undo: dict[bytes, Any] | None = None  # of the open unit: what was pending before its writes
        self._undo_timestamp_ms = -1

    def put(self, changes: Mapping[bytes, bytes | None], timestamp_ms: int) -> None:
        """A call has ended well: its changes count, with their unit if one is open."""
        if self._undo is not None:
            for k in changes:
                if k not in self._undo:
                    self._undo[k] = self._pending.get(k, _MISSING)
        self._pending.update(changes)
        self.known.update(changes)
        if self.forgets_deleted and None in changes.values():
            self._deleted += [k for k, raw in changes.items() if raw is None]
        self.write_timestamp_ms = max(self.write_timestamp_ms, timestamp_ms)

    def put_unknown(self, changes: Mapping[bytes, bytes | None], timestamp_ms: int) -> None:
        """The same outside of a unit, for keys that `known` does not have: whoever reads them looks into the layers."""
        self._pending.update(changes)
        self.write_timestamp_ms = max(self.write_timestamp_ms, timestamp_ms)

    def put_one_unknown(self, k: bytes, data: bytes, timestamp_ms: int) -> None:
        """The same for one key, in a unit or not."""
        if self._undo is not None:
            self.put_one(k, data, timestamp_ms)
            return
        self._pending[k] = data
        if timestamp_ms > self.write_timestamp_ms:
            self.write_timestamp_ms = timestamp_ms

    def put_one(self, k: bytes, data: bytes, timestamp_ms: int) -> None:
        """The same for one key."""
        if self._undo is not None and k not in self._undo:
            self._undo[k] = self._pending.get(k, _MISSING)
        self._pending[k] = self.known[k] = data
        if timestamp_ms > self.write_timestamp_ms:
            self.write_timestamp_ms = timestamp_ms

    def remember(self, k: bytes, raw: bytes | None) -> None:
        """A write of no call: the table's own."""
        if raw is None and self.forgets_deleted:
            self._deleted.append(k)
        self._pending[k] = self.known[k] = raw

    def remember_deleted(self, keys: Sequence[bytes]) -> None:
        """The same for many keys that are not there any more."""
        if self.forgets_deleted:
            self._deleted += keys
        gone: Writes = dict.fromkeys(keys)
        self._pending.update(gone)
        self.known.update(gone)

    @property
    def waiting(self) -> int:
        """How many keys were written since the last take."""
        return len(self._pending)

    def written(self) -> Sequence[Writes]:
        """The layers, the oldest first."""
        return (*self._collected, self._pending)

    def keys(self) -> Iterable[bytes]:
        for layer in self.written():
            yield from layer

    # a unit

    def begin_unit(self) -> None:
        """The writes until `end_unit` count together, or not at all."""
        self._undo = {}
        self._undo_timestamp_ms = self.write_timestamp_ms

    def end_unit(self) -> None:
        self._undo = None

    def undo_unit(self) -> None:
        """The writes of the open unit never were."""
        for k, before in (self._undo or {}).items():
            if before is not _MISSING:
                self._pending[k] = self.known[k] = before
                continue
            del self._pending[k], self.known[k]
            for layer in reversed(self._collected):
                if k in layer:
                    self.known[k] = layer[k]
                    break
        self.write_timestamp_ms = self._undo_timestamp_ms
        self._undo = None

    # commits

    def collect(self) -> tuple[Writes, int]:
        """The writes since the last take, last per key, without those of an open unit; and the time they carry (ms)."""
        timestamp_ms = self.write_timestamp_ms
        collected, self._pending = self._pending, {}
        deleted, self._deleted = self._deleted, []
        self._collected_deleted.append(deleted)
        if self._undo:
            self._deleted = [k for k in deleted if k in self._undo]
            timestamp_ms = self._undo_timestamp_ms
            self._pending = {k: collected.pop(k) for k in self._undo}
            collected.update((k, before) for k, before in self._undo.items() if before is not _MISSING)
            self._undo = dict.fromkeys(self._undo, _MISSING)
        self._collected.append(collected)
        return collected, max(timestamp_ms, 0)

    def mark_applied(self) -> None:
        """The store has the writes of the oldest take that was not settled yet."""
        del self._collected[0], self._collected_deleted[0]
        if len(self.known) > self.most_known:
            kept = {k: v for layer in (*self._collected, self._pending) for k, v in layer.items()}
            self.known.clear()
            self.known.update(kept)

    def forget_deleted(self) -> None:
        """The oldest take is about to be marked applied: what it deleted is not known any more, where nothing was written since."""
        if not (gone := self._collected_deleted[0]):
            return
        later = (*self._collected[1:], self._pending)
        known = self.known
        for k in gone:
            if known.get(k, _MISSING) is None and not any(k in layer for layer in later):
                del known[k]
