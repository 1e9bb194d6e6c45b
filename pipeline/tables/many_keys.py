"""A table by many keys at once, for calls that take columns. One rule: it means what TableView says of each key in turn.

Of one room with TableView: it reads and fills what a call has in its hands, without a Python call for a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.tables.call_number import check
from pipeline.tables.table import ReadsMany
from pipeline.tables.view import DELETED, TableView

_MISSING: Any = object()


class ManyKeys:
    """Of one table of a task; keys and values are bytes, as they are stored (an expiring table's without its time)."""

    def __init__(self, view: TableView[Any, Any]) -> None:
        self.view = view

    def read(self, keys: Sequence[bytes], *, in_order: bool = False) -> list[bytes | None]:
        """The value of each key as this call sees it; None where there is none. `in_order`: of the keys, by their bytes."""
        view = self.open()
        known = view._known
        if not view._is_plain:
            return [self._now(k) for k in keys]
        missing = keys if known.keys().isdisjoint(keys) else [k for k in keys if k not in known]
        if missing:
            self._fetch(missing if in_order else sorted(missing))  # one that comes twice is read twice
        if not view._live:
            return list(map(known.__getitem__, keys))
        given = view._set
        return [given[k] if k in given else known[k] for k in keys]

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Sets each key, which belongs to this task."""
        view = self.open()
        written = dict(zip(keys, values, strict=True))
        view._live.update(written)
        view._set.update(written)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Removes each key that is there."""
        view = self.open()
        for k, value in zip(keys, self.read(keys), strict=True):
            if value is not None:
                view._live[k] = DELETED
                view._set[k] = None

    @property
    def check_owner(self) -> Callable[[Any, bytes], None] | None:
        """Raises WrongTask for a key of another task; None where a task may write any key."""
        return self.view._check_owner

    def open(self) -> TableView[Any, Any]:
        """The table, while a call has it. Raises PipelineError once the call has ended."""
        if self.view.closed:
            check(self.view.call, "table", self.view.spec.name)
        return self.view

    def _fetch(self, keys: Sequence[bytes]) -> None:
        """Keys that are not known, sorted. Raises the store's error."""
        view = self.view
        store = view._store
        if not isinstance(store, ReadsMany):
            for k in keys:
                view._read(k)
            return
        try:
            view._known.update(zip(keys, store.get_many(keys), strict=True))
        except Exception as error:
            view.fault = error
            raise

    def _now(self, k: bytes) -> bytes | None:
        given = self.view._set.get(k, _MISSING)
        return self.view._current(k) if given is _MISSING else given
