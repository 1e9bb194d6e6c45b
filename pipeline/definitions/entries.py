"""The entries of a stored table, by their bytes: to the records of which key one belongs, and when something of it comes due.

One rule: every entry that a view writes is known here, those of its indexes too; what is not is refused, and never left behind.
Pure. The forms are those of the views (`pipeline.time`, `pipeline.tables`). Used where state goes to other tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.definitions.definition import Stored, TableDef
from pipeline.definitions.foreign_key_join import JoinState
from pipeline.definitions.join import JoinDef
from pipeline.definitions.timed import FixedDef, SessionDef, TimedDef, TimersDef
from pipeline.definitions.topic_tables import TopicTableDef
from pipeline.errors import PipelineError
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time import join_view, session_form, sliding_form
from pipeline.time.position import Place
from pipeline.time.timed_view import TIME_BYTES, read_time
from pipeline.time.windows import Hopping, Session, Sliding, Tumbling

_LENGTH_BYTES = 4
_HEAD = 1 + TIME_BYTES
KeyOf = Callable[[bytes], bytes]
DueAt = Callable[[bytes, bytes], Place | None]


def keeps_time(table: Stored[Any]) -> bool:
    """Whether the time of its task lies in it."""
    if isinstance(table, TopicTableDef):
        return table.versions_ms is not None
    return table.keeps_time or (type(table) is TableDef and table.spec.expire_ms is not None)


def is_time(table: Stored[Any], entry: bytes) -> bool:
    """Whether an entry is the time of the task."""
    return entry == STREAM_TIME_KEY and keeps_time(table)


def is_by_record(table: Stored[Any]) -> bool:
    """Whether its keys are those of records as they came, and not the user's."""
    return isinstance(table, TopicTableDef | JoinDef | JoinState)


def key_of(table: Stored[Any]) -> KeyOf:
    """What gives the key of an entry that is not the task's time. Raises PipelineError for an entry of no form."""
    if isinstance(table, FixedDef):
        return _of(table, {b"s": _counted(TIME_BYTES), b"d": _from(_HEAD), b"w": _from(_HEAD)})
    if isinstance(table, SessionDef):
        closed, begun = _from(_HEAD), session_form.begun_key
        return _of(table, {b"s": session_form.key_of, b"d": begun, b"e": closed})
    if isinstance(table, TimersDef):
        return _of(table, {b"t": _from(1), b"d": _from(_HEAD)})
    if isinstance(table, TopicTableDef):
        return _of(table, {b"k": _from(1), b"v": _counted(TIME_BYTES)})
    if isinstance(table, JoinDef):
        return _of(table, dict.fromkeys((b"l", b"r", b"d", b"e"), join_view.key_of))
    if isinstance(table, JoinState) and table.is_grouped:
        return lambda entry: entry[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(entry[:_LENGTH_BYTES], "big")]
    if type(table) is TableDef or isinstance(table, JoinState):
        return lambda entry: entry
    raise PipelineError(f"{table.kind} {table.name!r}: it is not known whose its entries are; report it")


def _from(start: int) -> KeyOf:
    return lambda entry: entry[start:]


def _counted(tail_bytes: int) -> KeyOf:
    """Behind its length, and before so many other bytes."""
    return lambda entry: entry[1 + _LENGTH_BYTES : -tail_bytes]


def _of(table: Stored[Any], forms: dict[bytes, KeyOf]) -> KeyOf:
    def found(entry: bytes) -> bytes:
        form = forms.get(entry[:1])
        if form is None:
            raise PipelineError(f"{table.kind} {table.name!r}: an entry begins with {entry[:1]!r}; report it")
        return form(entry)

    return found


def due_at(table: Stored[Any], *, announces: bool) -> DueAt:
    """What gives the place at which a call, or a timer, of an entry (key, value) comes due, wherever the task's time is; None
    where nothing of it does. `announces`: a function is called for what closes."""
    order = table.order
    if isinstance(table, TimersDef):
        return lambda k, _: (read_time(k), order, k[_HEAD:]) if k[:1] == b"d" else None
    if isinstance(table, JoinDef):
        return lambda k, _: _alone(table, k)
    if not announces or not isinstance(table, TimedDef):
        return lambda k, raw: None
    if isinstance(table, SessionDef) and isinstance(table.window_kind, Session):
        after_ms = table.window_kind.gap_ms + table.grace_ms
        return lambda k, raw: (
            (read_time(raw, 0) + after_ms, order, session_form.key_of(k)) if k[:1] == session_form.SESSION else None
        )
    assert isinstance(table, FixedDef)
    kind, grace_ms = table.window_kind, table.grace_ms
    assert isinstance(kind, Tumbling | Hopping | Sliding)
    is_sliding, end_of = isinstance(kind, Sliding), kind.end_of

    def closes_at(k: bytes, raw: bytes) -> Place | None:
        if not (sliding_form.is_shown_index(k, raw) if is_sliding else k[:1] == b"w"):
            return None
        return end_of(read_time(k)) - 1 + grace_ms, order, k[_HEAD:]

    return closes_at


def _alone(join: JoinDef, entry: bytes) -> Place | None:
    if not join_view.is_index(entry) or not join.announces_alone(side := join_view.side_of(entry)):
        return None
    end_ms, rest = join_view.end_and_place(entry)
    return end_ms, join.order + side, rest


def moved(table: Stored[Any], entry: bytes, ends: dict[str, int]) -> bytes:
    """The entry as it lies in another partition. Records of a join get offsets below those that are to come there: lower
    by where the partition of their topic ends that they were in (`ends`)."""
    if not isinstance(table, JoinDef):
        return entry
    side = join_view.side_of(entry)
    return join_view.lowered(entry, ends[(table.left, table.right)[side].topic])
