"""What a user's function sees of event time: tables of windows and sessions, timers, and what comes due.

One rule: these are the types to declare; what implements them is in the views. A windowed table is at the time of the
call that it is given to, and `at(...)` is the same table at another time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from pipeline.tables.table import Table
from pipeline.time.windows import Window

K = TypeVar("K")
V = TypeVar("V")
K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class WindowTable(Table[K, V]):
    """A dict of what one window holds."""

    @property
    @abstractmethod
    def start_ms(self) -> int:
        """The first millisecond of the window."""

    @property
    @abstractmethod
    def end_ms(self) -> int:
        """The first millisecond after the window."""


class TumblingTable(WindowTable[K, V]):
    """The window at the time of the call, as a dict."""

    @abstractmethod
    def at(self, timestamp_ms: int) -> WindowTable[K, V]:
        """The window at another time. It can be read while it is retained, and written while it is open."""


class HoppingTable(ABC, Generic[K, V]):
    """The windows at the time of the call, a dict each: `for window in rolling: window[key] += 1`."""

    @abstractmethod
    def __iter__(self) -> Iterator[WindowTable[K, V]]:
        """The open windows that the time lies in, the earliest first."""

    @abstractmethod
    def at(self, timestamp_ms: int) -> HoppingTable[K, V]:
        """The same at another time: all its windows, to be read while retained, and written while open. In a batch, whose records
        are at their own times by it: those that are open, and all where none is."""


class SessionTable(Table[K, V]):
    """The session of each key that the time of the call meets, as a dict. A write merges what the time joins."""

    @abstractmethod
    def window(self, key: K) -> Window | None:
        """The times of the first and the last record of the open session of a key, as it was before this call wrote it;
        None where the time meets none."""

    @abstractmethod
    def at(self, timestamp_ms: int) -> SessionTable[K, V]:
        """The sessions at another time: to be read while retained, and written while open."""


class Timers(Table[K, int]):
    """A dict of due times in milliseconds. A timer leaves it when it comes due."""


class Due(msgspec.Struct, Generic[K_co], frozen=True):
    """A timer that is due."""

    key: K_co
    timestamp_ms: int


class ClosedWindow(msgspec.Struct, Generic[K_co, V_co], frozen=True):
    """What a window or session of a key held when it closed."""

    key: K_co
    value: V_co
    start_ms: int
    end_ms: int


class DueCall(NamedTuple):
    """A due timer, window or join record: where it stands in the order of what happens, what the function is given (two records of a
    join as a pair), the time that the call has, and key and value as they are stored."""

    place: tuple[int, int, bytes]
    argument: Any
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
