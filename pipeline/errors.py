"""The errors of definitions and processing. One rule: a message names what, where, and what to do.

Everything the other rooms may have to show to a person derives from PipelineError; `str(error)` is one line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

_SHOWN = 3  # errors of a group; the others are counted


def text_of(error: BaseException) -> str:
    """What an error of the user's code says, of a group (`asyncio.TaskGroup`) with those in it; its class may have a `__str__`
    that raises."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - it is theirs as well
        return f"its text cannot be read: __str__ raised {type(second).__name__}"
    if not isinstance(error, BaseExceptionGroup):
        return text
    inside = [f"{type(one).__name__}: {text_of(one)}".rstrip(": ") for one in error.exceptions[:_SHOWN]]
    more = len(error.exceptions) - len(inside)
    return f"{text}: {'; '.join(inside)}" + (f"; {more} more" if more else "")


class PipelineError(Exception):
    """Base of everything that goes wrong with an app, its definitions or its processing; `exit_code` is what a command
    ends with."""

    exit_code = 1


class DefinitionError(PipelineError):
    """A definition is wrong; raised while the user's module is imported."""

    exit_code = 2


class DefinitionUsed(PipelineError, TypeError):
    """A definition (topic, table, resource) was used as if it were the data."""


class TopologyError(PipelineError):
    """The declared pieces do not fit together, for example unequal partition counts."""


class TopologyRefused(TopologyError):
    """This version has nothing in common with what was kept under the same application id."""

    exit_code = 3


class SchemaRefused(PipelineError):
    """A value type cannot read what is stored; the message names the field."""


class CodecError(PipelineError, ValueError):
    """A key or value cannot be encoded or decoded."""


class WrongTask(PipelineError, KeyError):
    """A key was written to a table in a task that it does not belong to."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0]) if self.args else ""


class WindowClosed(PipelineError):
    """A window or session that has closed was written."""


class OtherKey(PipelineError):
    """A call that is one of several at once used a key that is not its record's."""


class LoadError(PipelineError):
    exit_code = 2
    """MODULE:APP cannot be loaded. `frames` holds the user's own frames where their code raised, else ""."""

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self.frames = frames


class DueCallId(NamedTuple):
    """A call of what came due, or of a join for a row that a call changed, as any replay of its task knows it: the `nth` of
    this processor, name (of the timers or table), time and key, of those that count with `due` (a place in the order of
    time), or with the record at topic, partition, offset."""

    processor: str
    name: str
    at_ms: int
    key: bytes | None
    nth: int
    due: tuple[int, int, bytes] | None
    record: tuple[str, int, int] | None


class ProcessorFailed(PipelineError):
    """A user function raised. `frames` is the text of the user's own frames; `__cause__` is what they raised; `due` says which
    call it was, where there is no record for it."""

    due: DueCallId | None = None

    def __init__(
        self, message: str, *, processor: str, task: str, topic: str, partition: int, offset: int, frames: str = ""
    ) -> None:
        super().__init__(message)
        self.processor = processor
        self.task = task
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.frames = frames

    def __reduce__(self) -> tuple[Any, ...]:
        """It may have to cross to another process."""
        return _again, (type(self), str(self), {name: getattr(self, name) for name in _FIELDS}, self.due)

    @property
    def record(self) -> str:
        """Where the record is: `payments-3@17`."""
        return shown_place(self.topic, self.partition, self.offset)


def shown_place(topic: str, partition: int, offset: int) -> str:
    """Where a record is; what came due lies in no topic, and has an offset below 0."""
    return f"what came due of {topic}" if offset < 0 else f"{topic}-{partition}@{offset}"


_FIELDS = ("processor", "task", "topic", "partition", "offset", "frames")


def _again(kind: type[ProcessorFailed], message: str, fields: dict[str, Any], due: DueCallId | None) -> ProcessorFailed:
    error = kind(message, **fields)
    error.due = due
    return error


class Letter(StrEnum):
    """What is left of a dead letter that its topic did not take."""

    WHOLE = "whole"  # it was not tried
    CUT = "cut"  # without what makes it large
    NONE = "none"  # nor was that taken: the processor stops


class CallLost(PipelineError):
    """The call of a record ended the process it ran in, lasted longer than it may, or wrote what the log does not take."""

    def __init__(self, message: str, letter: Letter = Letter.WHOLE) -> None:
        super().__init__(message)
        self.letter = letter


class CallCancelled(PipelineError):
    """A call ended by a cancellation that nobody outside asked for: of what it waited for."""


class DecodingFailed(ProcessorFailed):
    """The key or value of a record cannot be read as the declared type."""
