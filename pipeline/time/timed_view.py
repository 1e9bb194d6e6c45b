"""A table that keeps time: what windows, sessions, timers and joins have in common as stored tables.

One rule: its bytes lie under prefixes, in an order that makes closing and expiring cost what is closed: `position` says
how far time has come, an index by time (`DueIndex`) says what is next, and both are read from the store again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

import msgspec

from pipeline.errors import PipelineError
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.tables.table import IMMUTABLE, StoreView, TableSpec, after_prefix
from pipeline.tables.view import TableView
from pipeline.time.due_index import DueIndex
from pipeline.time.position import Place, Position, stored
from pipeline.time.tables import ClosedWindow, DueCall
from pipeline.values.codecs import SAME_BYTES, Codec

K = TypeVar("K")
V = TypeVar("V")
CheckOwner = Callable[[Any, bytes], None]
TIME_BYTES = 8
MOST_FORGOTTEN = 1_000


def time_bytes(at_ms: int) -> bytes:
    """A time in an index: the bytes are in the order of the times."""
    return at_ms.to_bytes(TIME_BYTES, "big")


def read_time(data: bytes, at: int = 1) -> int:
    return int.from_bytes(data[at : at + TIME_BYTES], "big")


class Prefixed:
    """A codec of keys behind a prefix."""

    def __init__(self, prefix: bytes, codec: Codec[Any]) -> None:
        self._prefix = prefix
        self._codec = codec

    def encode(self, value: Any) -> bytes:
        return self._prefix + self._codec.encode(value)

    def decode(self, data: bytes) -> Any:
        return self._codec.decode(data[len(self._prefix) :])


class ByUserKey:
    """A view whose keys hold one that the user has: the last one that was used is kept with its bytes."""

    keys_spec: TableSpec
    user_key: Any
    user_bytes: bytes

    def has_keys_of(self, codec: Codec[Any]) -> bool:
        """Whether a key that this codec has decoded has the same bytes here."""
        return self.keys_spec.key_codec is codec and isinstance(codec, SAME_BYTES)

    def bytes_of(self, key: Any) -> bytes:
        """The bytes of a key. Raises CodecError."""
        if key is self.user_key:
            return self.user_bytes
        data = self.keys_spec.encode_key(key)
        if type(key) in IMMUTABLE:
            self.user_key, self.user_bytes = key, data
        return data


class TimedView(TableView[K, V]):
    """See the module. `at_ms` is the time of the call that has it; None in a batch, which has no one time."""

    def __init__(
        self, spec: TableSpec, store: StoreView, position: Position, order: int, check_owner: CheckOwner | None
    ) -> None:
        super().__init__(spec, store, check_owner)
        self.position = position
        self.order = order
        self.at_ms: int | None = 0
        self.in_parts = False  # a take forgets some of what has expired, and another one the rest
        self.leaves_expired = False  # the last one did
        self.gone: list[tuple[bytes, bytes]] = []  # ranges of which the next take deletes all that is there
        kept = store.get(STREAM_TIME_KEY)
        position.start(kept, order)
        self.stream_ms = position.time_ms
        self._kept = kept

    def time_of_call(self) -> int:
        """Raises PipelineError in a batch."""
        if self.at_ms is None:
            raise PipelineError(
                f"table {self.spec.name!r}: a batch has records of several times; use {self.spec.name}.at(record.timestamp_ms)"
            )
        return self.at_ms

    def shown(self) -> Iterator[tuple[Any, Any]]:
        """What the whole store holds, decoded, as the Driver and tools show it."""
        return iter(())

    def is_late(self, key: Any, timestamp_ms: int) -> bool:
        """Whether nothing of it is open for a record."""
        return False

    def next_place(self) -> Place | None:
        """Where what comes due next stands in the order of what happens; None where nothing does."""
        return None

    def due_from_ms(self) -> int | None:
        """A time before which nothing comes due; None where nothing does. Asked for each record."""
        place = self.next_place()
        return None if place is None else place[0]

    def next_due(self) -> DueCall:
        """Returns what comes due next; None where nothing does."""
        raise AssertionError(f"nothing of {self.spec.name!r} comes due")

    def begin(self, due: DueCall) -> None:
        """It comes due: what its calls find changed in the table."""

    def is_chained(self, due: DueCall) -> bool:
        """Whether a call of this stream time made it due, in the past."""
        return False

    def shown_due(self, due: DueCall) -> str:
        """What comes due, for a person."""
        return f"a record of {self.spec.name!r} that nothing matched"

    def due_facts(self, due: DueCall) -> Mapping[str, object]:
        """What a dead letter says of it beside key, value and time: the bounds of a window, the times of a join's records."""
        argument = due.argument
        return {"start-ms": argument.start_ms, "end-ms": argument.end_ms} if isinstance(argument, ClosedWindow) else {}

    def argument_anew(self, due: DueCall) -> Any:
        """Returns the argument for a further function of the same due call, without what an earlier one has changed in place."""
        if not isinstance(due.argument, ClosedWindow):
            return due.argument
        return msgspec.structs.replace(due.argument, value=self.spec.decode_value(due.value or b""))

    def changes_before(self, timestamp_ms: int) -> bool:
        """Whether a window of it closes or expires before a time: a batch that has it ends there."""
        return False

    def call_of(self, due: DueCall | None) -> None:
        """Whose call this is; None: its call has ended."""

    def undone(self) -> None:
        """Discards writes that were made since the last settled call."""
        for index in self.indexes():
            index.reset()

    @abstractmethod
    def indexes(self) -> tuple[DueIndex, ...]:
        """What must be read again when writes were undone."""

    def forget_expired(self) -> None:
        """Writes tombstones for what has expired, and can no longer be read; of many some at each commit."""

    def most_forgotten(self) -> int | None:
        """How many entries a take forgets; None for all. A part is more than was written, so that none are left in the end, and
        never so many that nothing else happens for long."""
        return MOST_FORGOTTEN + self.layers.waiting if self.in_parts else None

    def collect(self, stream_ms: int) -> tuple[dict[bytes, bytes | None], int]:
        self.leaves_expired = False
        self.forget_expired()
        settled = stored(self.position.settled, self.order)
        if settled != self._kept and self.position.settled[0] >= 0:
            self._kept = settled
            self.layers.remember(STREAM_TIME_KEY, settled)
        return self.layers.collect()

    def take_gone(self) -> list[tuple[bytes, bytes]]:
        """The ranges of which the latest take has deleted all that the store has."""
        gone, self.gone = self.gone, []
        return gone

    def forget_at_places(self, old: DueIndex, place: Callable[[bytes], tuple[int, int, bytes]]) -> Iterator[bytes]:
        """The keys of an index whose places have been reached, each of which is to be forgotten before the next."""
        most = self.most_forgotten()
        for number in count():
            key = old.first()
            if key is None or place(key) > self.position.settled:
                return
            if number == most:
                self.leaves_expired = True
                return
            yield key

    def scan(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Keys that are stored or written, in order."""
        return (key for key, raw in self._merged(start, stop) if raw is not None)

    def keys_between(self, start: bytes, stop: bytes, most: int | None) -> list[bytes]:
        """The first keys, at most so many, that are stored or written. Costs what lies there, and a look at what waits."""
        written = [k for layer in self.layers.written() for k in layer if k < stop and k >= start]
        waiting = {k: self._known.get(k) for k in written}
        found = [k for k, raw in waiting.items() if raw is not None]
        try:
            for k, _ in self._store.range(start, stop):
                if k in waiting:
                    continue
                found.append(k)
                if len(found) == most:
                    break
        except Exception as error:
            self.fault = error
            raise
        found.sort()
        return found[:most]

    def stored_under(self, head: bytes, waiting: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """What lies under a prefix, in order; `waiting`: its keys that were written and may not be in the store yet. It costs
        what lies there, where `_merged` looks through all that waits."""
        try:
            found: dict[bytes, bytes | None] = dict(self._store.range(head, after_prefix(head)))
        except Exception as error:
            self.fault = error
            raise
        found.update((k, self._stored(k)) for k in waiting)  # some are in the store by now, and not known any more
        return [(k, raw) for k, raw in sorted(found.items()) if raw is not None]

    def waiting_by_head(self, heads: bytes, tail_bytes: int) -> dict[bytes, list[bytes]]:
        """The keys that begin with one of the bytes of `heads` and are not in the store yet, by all but their tails."""
        found: dict[bytes, list[bytes]] = {}
        for k in self.layers.keys():  # noqa: SIM118 - of layers, not of a dict
            if k[:1] and k[0] in heads:
                found.setdefault(k[:-tail_bytes], []).append(k)
        return found

    def is_stored(self, key: bytes) -> bool:
        return self._stored(key) is not None
