"""What becomes of a record whose call failed: `on_error`, by the class of the error. One rule: the nearest class that is
named decides, first on the processor, then on the app; an error that is named nowhere goes by the rest.

    on_error={ConnectionError: "wait", ValueError: letters}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.definitions.definition import Topic
from pipeline.errors import CallLost, Letter

STOP, SKIP, WAIT = "stop", "skip", "wait"
Choice = str | Topic[Any, Any]
OnError = str | Topic[Any, Any] | Mapping[type[Exception], str | Topic[Any, Any]]


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """`levels`: what is named, nearest first. A choice is "stop", "skip", "wait", or the topic for dead letters; the rest
    never waits."""

    levels: tuple[Mapping[type[Exception], Choice], ...]
    rest: Choice

    def of(self, error: BaseException) -> Choice:
        if isinstance(error, CallLost) and error.letter is Letter.NONE:
            return STOP
        for named in self.levels:
            for kind in type(error).__mro__:
                if kind in named:
                    found = named[kind]
                    # No client that comes back brings back a call that ended its process.
                    return STOP if found == WAIT and isinstance(error, CallLost) else found
        return self.rest

    def choices(self) -> Iterator[Choice]:
        """All that may be chosen."""
        for named in self.levels:
            yield from named.values()
        yield self.rest

    @property
    def waits(self) -> bool:
        return any(choice == WAIT for choice in self.choices())

    def __str__(self) -> str:
        """As `status` and `describe` name it: `ConnectionError: wait, otherwise stop`."""
        named: dict[str, str] = {}
        for level in self.levels:
            for kind, choice in level.items():
                named.setdefault(kind.__name__, _name(choice))
        rest = _name(self.rest)
        return ", ".join(
            [*(f"{kind}: {choice}" for kind, choice in named.items()), f"otherwise {rest}" if named else rest]
        )


def _name(choice: Choice) -> str:
    return choice if isinstance(choice, str) else choice.topic
