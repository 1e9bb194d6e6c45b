"""The two sides of a join by foreign key in their tasks: subscriptions, answers, and the calls that follow (KIP-213).

One rule: an answer counts while the left row is the one that was subscribed: its foreign key and the hash of its value are
compared. Whatever order answers come in, the last call for a left row is the one for the rows as they are. A subscription
has the stream time of its task, and its answer that same time, so that an answer is never before the row that it is for, also
where history is ordered by times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import msgspec

from pipeline.calls.call_failures import FAILURES_OR_CANCELLED
from pipeline.calls.effects import Effects
from pipeline.calls.steps import CallRecord, Item, Shown, count_of
from pipeline.calls.table_joins import JoinFailed, Rows, raw_of
from pipeline.definitions.definition import Topic
from pipeline.definitions.foreign_key_join import ForeignKeyJoin
from pipeline.records import OutputRecord, Record
from pipeline.tables.grouped import GroupedTable
from pipeline.tables.observed import Row, RowChange
from pipeline.tables.view import TableView
from pipeline.values.partitioner import partition_of

_M = TypeVar("_M")
_HASH_BYTES = 16
_UNKNOWN_MS = -1


class _LeftRow(msgspec.Struct, array_like=True, frozen=True):
    """What is kept of a left row: its foreign key (None: it has none), hash and time, and whether it has a result."""

    foreign_key: bytes | None
    hash: bytes
    timestamp_ms: int
    has_result: bool


class _Subscription(msgspec.Struct, array_like=True, frozen=True):
    """To the task of a foreign key. `hash` None ends it."""

    left_key: bytes
    hash: bytes | None


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    """To the task of a left row: the right row of its foreign key, if there is one, for the left row of this hash. `right_ms`
    is the time of that row, or of its deletion, where it is known."""

    foreign_key: bytes
    hash: bytes
    right: bytes | None
    right_ms: int


class Side(Protocol):
    """One side, as the calls of a step have it."""

    def of_change(self, table: str, change: RowChange, item: Item | None, stream_ms: int) -> Item | None:
        """The call for a change of its table, if there is one. Raises JoinFailed."""

    def of_message(self, item: Item) -> Item | None:
        """The call for a message of the other side, if there is one. Raises JoinFailed."""


class _Sender:
    """Sends to the tasks of the other side."""

    def __init__(self, effects: Effects, topic: Topic[Any, Any]) -> None:
        self._effects = effects
        self._topic = topic.topic

    def send(self, key: bytes, message: Any, timestamp_ms: int) -> None:
        partition = partition_of(key, count_of(self._topic, self._effects.partitions))
        output = OutputRecord(key, msgspec.msgpack.encode(message), max(timestamp_ms, 0))
        self._effects.outputs.setdefault((self._topic, partition), []).append(output)


class LeftSide:
    """See the module. It makes the calls of the join's function."""

    def __init__(self, join: ForeignKeyJoin, tables: Mapping[str, Any], effects: Effects, partition: int) -> None:
        self._join = join
        self._rows = Rows(join.left, tables[join.left.name], partition)
        self._right = Rows(join.right, None, partition)
        self._state: TableView[Any, Any] = tables[join.left_state.name]
        self._sender = _Sender(effects, join.subscriptions)

    def of_change(self, table: str, change: RowChange, item: Item | None, stream_ms: int) -> Item | None:
        """See Side. Raises JoinFailed where the row has no key that can be read: it has none then."""
        known = self._kept(change.key)
        if change.after is None:
            if known is None:
                return None
            self._unsubscribe(change.key, known, None, stream_ms)
            self._keep(change.key, None, change.timestamp_ms)
            return self._taken_back(change, item, stream_ms) if known.has_result else None
        hash_ = _hash(change.after.value)
        row = _LeftRow(None, hash_, change.timestamp_ms, known is not None and known.has_result)
        try:
            key = self._foreign_key(change, item)
        except JoinFailed:
            self._unsubscribe(change.key, known, None, stream_ms)
            self._keep(change.key, row, change.timestamp_ms)
            raise
        self._unsubscribe(change.key, known, key, stream_ms)
        if key is not None:
            self._keep(change.key, msgspec.structs.replace(row, foreign_key=key), change.timestamp_ms)
            self._sender.send(key, _Subscription(change.key, hash_), stream_ms)
            return None
        alone = self._join.keeps_left_alone
        self._keep(change.key, msgspec.structs.replace(row, has_result=alone), change.timestamp_ms)
        if alone:
            return self._call(change.key, self._left(change, item), None, raw_of(table, change, item), stream_ms)
        return self._taken_back(change, item, stream_ms) if row.has_result else None

    def of_message(self, item: Item) -> Item | None:
        """See Side. An answer to a row that is another one by now is dropped."""
        key = item.raw.key or b""
        answer = _message(item, _Answer)
        row = self._kept(key)
        if row is None or row.hash != answer.hash or row.foreign_key != answer.foreign_key:
            return None
        has_result = answer.right is not None or self._join.keeps_left_alone
        if has_result != row.has_result:
            self._keep(key, msgspec.structs.replace(row, has_result=has_result), item.raw.timestamp_ms)
        if not has_result and not row.has_result:
            return None
        stored = self._rows.at(key) if has_result else None
        left = self._rows.record(key, stored and Row(stored.value, row.timestamp_ms), item.raw.timestamp_ms)
        right: Record[Any, Any] | None = None
        if answer.right is not None:
            right = self._right.record(answer.foreign_key, Row(answer.right, answer.right_ms), row.timestamp_ms)
        at_ms = max(row.timestamp_ms, answer.right_ms)
        raw = CallRecord(item.raw.offset, at_ms, key, None if stored is None else stored.value, (), self._shown(left))
        return Item((left, right), raw, item.topic, item.stream_ms)

    def _shown(self, left: Record[Any, Any]) -> Callable[[], Shown]:
        names = self._join.left.name, self._join.right.name
        return lambda: (
            f"the row {left.key!r} of {names[0]!r} that {names[1]!r} answered",
            {"left-ms": left.timestamp_ms},
        )

    def _foreign_key(self, change: RowChange, item: Item | None) -> bytes | None:
        """Raises JoinFailed."""
        value = self._left(change, item).value
        try:
            key = self._join.key(value)
            return None if key is None else self._join.right.spec.encode_key(key)
        except FAILURES_OR_CANCELLED as error:
            raise JoinFailed from error

    def _left(self, change: RowChange, item: Item | None) -> Record[Any, Any]:
        return item.record if item is not None else self._rows.record(change.key, change.after, change.timestamp_ms)

    def _taken_back(self, change: RowChange, item: Item | None, stream_ms: int) -> Item:
        left = self._rows.record(change.key, None, change.timestamp_ms)
        if item is not None and change.after is None:
            left = item.record
        return self._call(change.key, left, None, raw_of(self._join.left.name, change, item), stream_ms)

    def _call(self, key: bytes, left: Any, right: Any, raw: Any, stream_ms: int) -> Item:
        return Item((left, right), raw, self._join.left.name, stream_ms)

    def _unsubscribe(self, left_key: bytes, known: _LeftRow | None, key: bytes | None, stream_ms: int) -> None:
        if known is not None and known.foreign_key is not None and known.foreign_key != key:
            self._sender.send(known.foreign_key, _Subscription(left_key, None), stream_ms)

    def _kept(self, key: bytes) -> _LeftRow | None:
        raw = self._state._stored(key)
        return None if raw is None else msgspec.msgpack.decode(raw, type=_LeftRow)

    def _keep(self, key: bytes, row: _LeftRow | None, timestamp_ms: int) -> None:
        data = None if row is None else msgspec.msgpack.encode(row)
        self._state.layers.put({key: data}, timestamp_ms)


class RightSide:
    """See the module. It calls no function: it answers."""

    def __init__(self, join: ForeignKeyJoin, tables: Mapping[str, Any], effects: Effects, partition: int) -> None:
        self._rows = Rows(join.right, tables[join.right.name], partition)
        self._state: GroupedTable = tables[join.right_state.name]
        self._sender = _Sender(effects, join.answers)

    def of_change(self, table: str, change: RowChange, item: Item | None, stream_ms: int) -> Item | None:
        """See Side: each row that has this foreign key is answered."""
        for left_key, hash_ in self._state.members(change.key):
            self._answer(left_key, hash_, change.key, change.after, change.timestamp_ms, change.timestamp_ms)
        return None

    def of_message(self, item: Item) -> Item | None:
        """See Side: a subscription is kept and answered, or ended."""
        key, at_ms = item.raw.key or b"", item.raw.timestamp_ms
        message = _message(item, _Subscription)
        self._state.put(key, message.left_key, message.hash, at_ms)
        if message.hash is not None:
            right = self._rows.at(key)
            right_ms = _UNKNOWN_MS if right is None else right.timestamp_ms
            self._answer(message.left_key, message.hash, key, right, right_ms, at_ms)
        return None

    def _answer(self, left_key: bytes, hash_: bytes, key: bytes, right: Row | None, right_ms: int, at_ms: int) -> None:
        answer = _Answer(key, hash_, None if right is None else right.value, right_ms)
        self._sender.send(left_key, answer, at_ms)


def _message(item: Item, kind: type[_M]) -> _M:
    """What the other side sent. Raises JoinFailed where somebody else has written it."""
    try:
        return msgspec.msgpack.decode(item.record.value or b"", type=kind)
    except msgspec.DecodeError as error:
        raise JoinFailed from error


def _hash(value: bytes) -> bytes:
    return blake2b(value, digest_size=_HASH_BYTES).digest()
