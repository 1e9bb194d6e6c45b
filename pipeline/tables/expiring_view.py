"""A table whose entries expire, as a call sees it. One rule: it means what TableView means; what most calls do, reading a key and
setting it to a value that cannot change in place, takes fewer steps.
"""

from __future__ import annotations

from typing import TypeVar

from pipeline.tables.expiry import live_value, stored
from pipeline.tables.view import MISSING, TableView

K = TypeVar("K")
V = TypeVar("V")


class ExpiringView(TableView[K, V]):
    """See the module; `spec.expire_ms` is set."""

    def __getitem__(self, key: K) -> V:
        expire_ms = self.spec.expire_ms
        if self._live or expire_ms is None:
            return super().__getitem__(key)
        k = self._last_bytes if key is self._last_key and not self.closed else self._key(key)
        raw = self._known.get(k, MISSING)
        if raw is MISSING:
            raw = self._read(k)
        if raw is not None and (data := live_value(raw, expire_ms, self.stream_ms)) is not None:
            return self._hand_out(k, data)
        return self._default(key, k) if self._constant is MISSING else self._constant

    def keep_one(self, timestamp_ms: int) -> bool:
        if len(self._live) != 1:
            return False
        (k,) = self._live
        data = self._set.get(k)
        if data is None:
            return False
        written = stored(data, self.stream_ms)
        before = self._known.get(k, MISSING)
        if written != (self._stored(k) if before is MISSING else before):
            self.layers.put_one(k, written, timestamp_ms)
        self._live.clear()
        self._set.clear()
        return True
