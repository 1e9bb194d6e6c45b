"""Whose a use of a table or a sink is: an asyncio task that a call has left behind is not the call that waits now.

One rule: what is begun in a call is the call's, for as long as it is under way, and no other's. asyncio hands the context of who begins
a task on to it, so each call of a task whose calls wait sets a number there, which its tables and sinks have while it is under way.
What was begun in no call at all, as an executor's thread, counts with the call that waits. Sync calls alone do not wait: there
nothing else runs beside them, and whether they are closed says it all.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count

from pipeline.errors import PipelineError

_CALL: ContextVar[int] = ContextVar("call", default=0)
_numbers = count(1)
NOBODY = -1  # no call is under way


current = _CALL.get
"""The number of the call that this was begun in; 0: of none."""


def begin() -> int:
    """A call begins here: returns its number, which everything that it begins has."""
    number = next(_numbers)
    _CALL.set(number)
    return number


def is_of(number: int) -> bool:
    """Whether this was begun in the call of that number, or in none, and the call is under way."""
    return number != NOBODY and current() in (number, 0)


def check(number: int, kind: str, name: str) -> None:
    """Raises PipelineError where who uses it was begun in another call than this one, or none is under way."""
    if not is_of(number):
        raise PipelineError(f"{kind} {name!r} was used after the call it was given to had ended")
