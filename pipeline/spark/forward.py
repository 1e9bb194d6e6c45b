"""What an error or a signal adds about a repartition that has begun and did not end: partitions are never taken away, so it ends forward.

One rule: from its note in the log on the app is refused until it has ended, so whatever ends the command says that the same one goes on:
errors of a log that is full or away, those of Spark, and signals.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pipeline.spark.session import SparkFailed
from state.errors import LogUnavailable, OutcomeUnknown


@dataclass
class Noted:
    """Whether the log may have the note, of which application."""

    application: str = ""
    may_be: bool = False

    def line(self) -> str:
        """What a command that was asked to end prints; "" where it left nothing."""
        begun = f"the repartition of '{self.application}' has begun and did not end"
        return f"{begun}; {self.again()}" if self.may_be else ""

    def again(self) -> str:
        return f"run the same command again: '{self.application}' starts once that has ended"


@asynccontextmanager
async def ends_forward(note: Noted) -> AsyncIterator[None]:
    """Raises what comes, also of a beat of the lease and at the end of Spark, with what goes on."""
    try:
        yield
    except (LogUnavailable, OutcomeUnknown, SparkFailed) as error:
        if not note.may_be:
            raise
        raise type(error)(f"{error}; then {note.again()}") from error
