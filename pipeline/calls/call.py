"""The rules of single calls: which of them count only together, and how a user's function is called and awaited.

One rule: a sync function that returns an awaitable is an error, never a call that did nothing. Used by
`pipeline.process` alone.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from pipeline.calls.call_failures import FAILURES, of_cancelled
from pipeline.calls.steps import Item, Step
from pipeline.calls.timeouts import Countdown
from pipeline.errors import DefinitionError, PipelineError

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions.topology import Subtopology

UNREADABLE, FAILED, DONE = "unreadable", "failed", "done"  # what became of the call of a whole batch
CALL, RECORD, RUN = "call", "record", "run"  # what counts together: a call, the calls of a record, or of a whole run


def unit_of(app: App, subtopology: Subtopology) -> str:
    """Which calls count only together. A record that several steps read is completed by all of them; where a step of the
    task takes batches, too, the whole run is."""
    steps: dict[str, list[bool]] = {}
    for name in subtopology.processors:
        for topic in app.processors[name].sources:
            steps.setdefault(topic.topic, []).append(app.processors[name].batch)
    if any(
        app.tables[name].is_ordered for name in subtopology.tables
    ):  # with what comes due in the past, and what its record writes
        return RUN if any(app.processors[name].batch for name in subtopology.processors) else RECORD
    sources = [topic for name in subtopology.processors for topic in app.processors[name].sources]
    if any(topic.event_time.max_ahead_ms is not None for topic in sources):
        return RECORD
    several = [batch for batch in steps.values() if len(batch) > 1]
    if not several:
        return CALL
    return RUN if any(any(batch) for batch in steps.values()) else RECORD


def without_waiting(run: Coroutine[Any, Any, int]) -> int:
    """The result of a run whose steps are all sync: it never waits. Raises PipelineError."""
    try:
        run.send(None)
    except StopIteration as ended:
        return int(ended.value)
    run.close()
    raise PipelineError(
        "a run of sync processors awaited an unfinished future; declare a processor that waits with async def"
    )


async def in_time(step: Step, argument: Any) -> None:
    """Awaits the user's function, for at most its timeout, which is set where it waits at all. Raises TimeoutError, CallCancelled."""
    before = cancellations()()
    try:
        call = step.function(argument, *step.arguments)
        if step.countdown is None or not isinstance(call, CoroutineType):
            await call
        else:
            await counted(step.name, step.countdown, call)
    except asyncio.CancelledError as error:
        if (failure := cancelled_itself(step.name, error, before)) is None:
            raise
        let_off(before)
        raise failure from error
    except FAILURES:
        let_off(before)
        raise
    let_off(before)


def cancellations() -> Callable[[], int]:
    """Returns what counts how often the asyncio task that calls has been cancelled, and not been let off."""
    task = _this_task()
    return int if task is None else task.cancelling


def _this_task() -> asyncio.Task[Any] | None:
    """None where nothing waits, and there is no loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def let_off(before: int) -> None:
    """A call has ended, and what it was cancelled for with it: a TaskGroup that failed in it leaves its own count behind (CPython 3.11),
    by which a later call would be taken for one that is cancelled from outside."""
    task = _this_task()
    while task is not None and task.cancelling() > before:
        task.uncancel()


def cancelled_itself(name: str, error: BaseException, before: int) -> BaseException | None:
    """What a call failed with that awaited something cancelled, with the frames of the user's code. None where `error` is
    no cancellation, or somebody has cancelled the asyncio task that calls, which had been so often `before`."""
    if not isinstance(error, asyncio.CancelledError) or cancellations()() > before:
        return None
    return of_cancelled(name, error, awaits=True)


async def counted(name: str, countdown: Countdown, call: CoroutineType[Any, Any, Any]) -> None:
    """The call, for at most its timeout, which is set where it waits at all. Raises TimeoutError."""
    try:
        waits_for = call.send(None)
    except StopIteration:
        return
    countdown.of_this_task()
    await _rest(name, countdown, call, waits_for)


@types.coroutine
def _rest(
    name: str, countdown: Countdown, call: CoroutineType[Any, Any, Any], waits_for: Any
) -> Generator[Any, Any, None]:
    """What is left of a call that has come to its first wait, for at most its timeout. Raises TimeoutError."""
    countdown.begin()
    try:
        while True:
            try:
                answer = yield waits_for
            except GeneratorExit:
                call.close()
                raise
            except BaseException as error:  # noqa: BLE001 - for the call to see
                waits_for = call.throw(error)
            else:
                waits_for = call.send(answer)
    except StopIteration:
        return
    except asyncio.CancelledError as error:
        if countdown.end():
            raise _too_late(name, countdown) from error
        raise
    finally:
        countdown.end()


def ended(name: str, countdown: Countdown | None, error: BaseException) -> BaseException:
    """What a call failed with that ended with `error`: a TimeoutError where it was cancelled because its time was over."""
    if countdown is None or not countdown.end() or not isinstance(error, asyncio.CancelledError):
        return error
    found = _too_late(name, countdown)
    found.__cause__ = error
    return found.with_traceback(error.__traceback__)


def _too_late(name: str, countdown: Countdown) -> TimeoutError:
    return TimeoutError(f"{name} did not end within its timeout of {countdown.seconds:g} s")


def newest(items: Sequence[Item]) -> int:
    """The time that what a batch sends carries."""
    return max([item.raw.timestamp_ms for item in items])


def refuse_awaitable(name: str, result: Any) -> None:
    """A sync function that returns a coroutine would have done nothing at all. Raises DefinitionError."""
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        raise DefinitionError(f"{name} returned an awaitable; declare it with async def")
