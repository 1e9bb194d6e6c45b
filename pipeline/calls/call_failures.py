"""What a user's function may raise as a failure of its call. One rule: a worker takes no error of a call for its own end.

`sys.exit()` in a processor is no orderly end. A function that is no coroutine cannot be cancelled: a cancellation that comes out of it
is of what it waited for in another thread. Used where a step is called, and by FailedCalls.
"""

from __future__ import annotations

from asyncio import CancelledError

from pipeline.errors import CallCancelled

FAILURES: tuple[type[BaseException], ...] = (Exception, SystemExit)
FAILURES_OR_CANCELLED: tuple[type[BaseException], ...] = (*FAILURES, CancelledError)


def of_cancelled(name: str, error: BaseException, *, awaits: bool) -> BaseException:
    """Of a cancellation that has ended a call, and that nobody outside asked for, the error that `on_error` goes by, with the
    frames of the user's code; any other error as it is."""
    if not isinstance(error, CancelledError):
        return error
    done, does = ("awaited", "awaits") if awaits else ("waited for", "waits for")
    found = CallCancelled(
        f"what {name} {done} was cancelled, and the call was not; catch asyncio.CancelledError where it {does} it"
    )
    found.__cause__ = error
    return found.with_traceback(error.__traceback__)


def undone(name: str) -> BaseException:
    """What ends a run whose call is undone, whatever its function has made of the cancellation."""
    return CancelledError(f"the call of {name} is undone")
