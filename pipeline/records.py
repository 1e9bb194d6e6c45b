"""What goes through a processor: records in, records out. One rule: they are values, and never changed.

`Record` is what a user function sees; `RawRecord` is what the log gives (its own class fits the protocol);
`OutputRecord` is what a task wants written.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)

LAST_MS = (1 << 63) - 1  # a time takes 8 bytes in stores and in Kafka
TICK = ""  # the topic of what is no record: time has come to where it says
Headers = tuple[tuple[str, bytes], ...]


class Record(msgspec.Struct, Generic[K_co, V_co], frozen=True, gc=False):
    """One record, decoded. A tombstone has `value` None, a keyless record `key` None, whatever the declared types."""

    key: K_co
    value: V_co
    timestamp_ms: int = 0
    headers: Headers = ()
    topic: str = ""
    partition: int = 0
    offset: int = 0


class RawRecord(Protocol):
    """A record as it lies in the log."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class SourceRecord(NamedTuple):
    """A RawRecord of our own, where no log gives one (the Driver, backfill)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class OutputRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be written; `value` None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()
