"""A worker's status over one connection, sent as what changed since the message before: both ends, pure.

One rule: the receiver knows the whole status after each message, exactly as it would from a whole one. What a message
does not name is as in the message before it on the same connection, which is ordered and loses nothing; a map sent as a
column has the keys that it had, in the order in which they were sent. Used by workers/worker/session.py and shell.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from msgspec import UNSET

from orchestrator.coordinator.messages import TEXT_MAX, FullStatus, Join, StatusDelta
from orchestrator.errors import ProtocolError
from orchestrator.group.shared_keys import SharedKeys
from orchestrator.model import COUNT_MAX, TASKS_MAX, MemberStatus, TaskId

FIELDS = MemberStatus.__struct_fields__
WIDE = {"facts"}  # several columns, for several values a task
COLUMNS = (list, tuple)
NOTHING = (UNSET,) * len(FIELDS)
_values = attrgetter(*FIELDS)


class DeltaEncoder:
    """The sending end. `changes`: the other end has announced that it understands StatusDelta."""

    def __init__(self, joined: MemberStatus) -> None:
        self.changes = False
        self._sent = joined

    def say(self, status: MemberStatus) -> FullStatus | StatusDelta:
        """The message to send next, and it has to be sent: the one after it builds on it."""
        if not self.changes:
            self._sent = status
            return FullStatus(status)
        named: dict[str, Any] = {}
        sent: dict[str, Any] = {}
        for name, before, now in zip(FIELDS, _values(self._sent), _values(status), strict=True):
            if now == before:
                sent[name] = before  # not `now`: the other end keeps the order in which it received the keys
            elif isinstance(now, Mapping) and now.keys() == before.keys():
                sent[name] = {key: now[key] for key in before}
                rows = list(sent[name].values())
                named[name] = tuple(map(list, zip(*rows, strict=True))) if name in WIDE else rows
            else:
                named[name] = sent[name] = now
        self._sent = MemberStatus(**sent)
        return StatusDelta(**named)


class DeltaDecoder:
    """The receiving end."""

    def __init__(self) -> None:
        self._received: MemberStatus | None = None

    def decode(self, message: Join | FullStatus | StatusDelta) -> MemberStatus:
        """The whole status. Raises ProtocolError for a change of a field that was never sent."""
        if not isinstance(message, StatusDelta):
            for now in _values(message.status):
                _checked(now)
            self._received = message.status
            return message.status
        if self._received is None:
            raise ProtocolError("a change of a status that was never sent; send a whole one first")
        named = _values(message)
        if named == NOTHING:
            return self._received
        values = list(_values(self._received))
        for number, now in enumerate(named):
            if now is not UNSET:
                values[number] = _shared(values[number], now) if type(now) in COLUMNS else _checked(now)
        self._received = MemberStatus(*values)
        return self._received


def _checked(value: Any) -> Any:
    """The value, if it is what a group may have. Raises ProtocolError."""
    if isinstance(value, int):
        if not 0 <= value <= COUNT_MAX:
            raise ProtocolError(f"a generation or term of {value}; it has to be between 0 and {COUNT_MAX}")
    elif isinstance(value, str):
        if len(value) > TEXT_MAX:
            raise ProtocolError(f"a notice of {len(value)} characters is over the limit of {TEXT_MAX}")
    elif len(value) > TASKS_MAX:
        raise ProtocolError(f"a status of {len(value)} tasks is over the limit of {TASKS_MAX}")
    return value


def _shared(before: Mapping[TaskId, Any], values: list[Any] | tuple[list[Any], ...]) -> SharedKeys[Any]:
    tasks = len(before)
    for one in values if type(values) is tuple else (values,):
        if len(one) != tasks:
            raise ProtocolError(f"a column of {len(one)} values for {tasks} tasks; tell the map whole")
    return SharedKeys(before, values)
