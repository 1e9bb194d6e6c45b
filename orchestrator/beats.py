"""A worker's status over one connection, told by what it was before: the two ends of it, pure.

One rule: whoever hears knows after each message the whole status, exactly as it would from a whole one. What a message
does not name is as in the message before it on the same connection, which is ordered and loses nothing; a map told as a
column has the keys that it had, in the order in which they were told. Used by workers/session.py and coordinator.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from msgspec import UNSET

from orchestrator.columns import Column
from orchestrator.errors import ProtocolError
from orchestrator.messages import Beat, Change, Join
from orchestrator.model import Status, TaskId

FIELDS = tuple(field.name for field in fields(Status))
WIDE = {"facts"}  # several columns, for several values a task
COLUMNS = (list, tuple)
_values = attrgetter(*FIELDS)


class Speaker:
    """The end that tells. `changes`: the other end has said that it understands Change."""

    def __init__(self, joined: Status) -> None:
        self.changes = False
        self._told = joined

    def say(self, status: Status) -> Beat | Change:
        """The message to send next, and it has to be sent: the one after it builds on it."""
        if not self.changes:
            self._told = status
            return Beat(status)
        named: dict[str, Any] = {}
        told: dict[str, Any] = {}
        for name, before, now in zip(FIELDS, _values(self._told), _values(status), strict=True):
            if now == before:
                told[name] = before  # not `now`: the other end keeps the order in which it was told the keys
            elif isinstance(now, Mapping) and now.keys() == before.keys():
                told[name] = {key: now[key] for key in before}
                rows = list(told[name].values())
                named[name] = tuple(map(list, zip(*rows, strict=True))) if name in WIDE else rows
            else:
                named[name] = told[name] = now
        self._told = Status(**told)
        return Change(**named)


class Listener:
    """The end that hears."""

    def __init__(self) -> None:
        self._heard: Status | None = None

    def hear(self, message: Join | Beat | Change) -> Status:
        """The whole status. Raises ProtocolError for a change of something that was never told."""
        if not isinstance(message, Change):
            self._heard = message.status
            return message.status
        if self._heard is None:
            raise ProtocolError("a change of a status that was never told; tell a whole one first")
        told = list(_values(self._heard))
        for place, now in enumerate(_values(message)):
            if now is not UNSET:
                told[place] = _column(told[place], now) if type(now) in COLUMNS else now
        self._heard = Status(*told)
        return self._heard


def _column(before: Mapping[TaskId, Any], told: list[Any] | tuple[list[Any], ...]) -> Column[Any]:
    tasks = len(before)
    for values in told if type(told) is tuple else (told,):
        if len(values) != tasks:
            raise ProtocolError(f"a column of {len(values)} values for {tasks} tasks; tell the map whole")
    return Column(before, told)
