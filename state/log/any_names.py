"""Record batches with headers whose names are no UTF-8: brokers take any, and clients of Go and C write any.

One rule: what is wrong in a name is replaced, as Java's client does it; keys and values are bytes, and stay. Slow: `batches.py`
reads a batch so where aiokafka's compiled reader refuses it.
"""

from __future__ import annotations

from typing import Any

from aiokafka.record.default_records import _DefaultRecordBatchPy


class _Lenient(bytearray):
    """Whose slices decode to text in any case."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _Lenient(found) if isinstance(found, bytearray) else found

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)


class AnyNames(_DefaultRecordBatchPy):  # type: ignore[misc]
    """A batch to go through once. Raises aiokafka's CorruptRecordException."""

    _buffer: Any

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Lenient(self._buffer)
