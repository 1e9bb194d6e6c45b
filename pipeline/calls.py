"""The rules of single calls: which of them count only together, and how a user's function is called and awaited.

One rule: a sync function that returns something to await is an error, never a call that did nothing. Used by
`pipeline.process` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.errors import DefinitionError, PipelineError
from pipeline.steps import Item, Step

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.topology import Subtopology

CALL, RECORD, RUN = "call", "record", "run"  # what counts together: a call, the calls of a record, or of a whole run


def unit_of(app: App, subtopology: Subtopology) -> str:
    """Which calls count only together. A record that several steps read is completed by all of them; where one of these
    takes batches, the whole run is."""
    steps: dict[str, list[bool]] = {}
    for name in subtopology.processors:
        for topic in app.processors[name].sources:
            steps.setdefault(topic.topic, []).append(app.processors[name].batch)
    several = [batch for batch in steps.values() if len(batch) > 1]
    if not several:
        return CALL
    return RUN if any(any(batch) for batch in several) else RECORD


def without_waiting(run: Coroutine[Any, Any, int]) -> int:
    """The result of a run whose steps are all sync: it never waits."""
    try:
        run.send(None)
    except StopIteration as ended:
        return int(ended.value)
    run.close()
    raise PipelineError("a run of sync processors waited for something; declare what waits with async def")


async def in_time(step: Step, argument: Any) -> None:
    """Await the user's function, for at most its timeout."""
    try:
        async with asyncio.timeout(step.timeout_s) as limit:
            await step.function(argument, *step.arguments)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"{step.name} did not end within its timeout of {step.timeout_s:g} s") from error


def newest(items: Sequence[Item]) -> int:
    """The time that what a batch sends carries."""
    return max(item.raw.timestamp_ms for item in items)


def refuse_awaitable(name: str, result: Any) -> None:
    """A sync function that returns a coroutine would have done nothing at all."""
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        raise DefinitionError(f"{name} returned something to await; declare it with async def")
