"""The end of a process of the group is bounded: what has nothing left to lose does not stay because something does not end.

One rule: it begins when everything that was processed is committed and every task is given up. A process that is still there
after the limit writes down what it waits for, one line a task, and ends with the code that it was to end with. Used by
worker_main.py and instance.py, through Surroundings.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import AsyncGeneratorType, FrameType

LIMIT_S = 12.0  # stores are closed within 10 s; an instance that was asked to stop kills its workers after 15 s, without a word
FRAMES = 4
BETWEEN = ("anext_awaitable", "async_generator_asend", "async_generator_athrow")


def stopping_signals() -> list[signal.Signals]:
    """Those that stop a process of the group in order. A hang-up that it was started to ignore (`nohup`) it ignores."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def wake_no_more() -> None:
    """The loop is about to be closed, and nothing that a signal could stop is left: one that comes meanwhile would be written to what
    is closed already, and the interpreter would show that."""
    signal.set_wakeup_fd(-1)


class Cancelled(Exception):
    """A task of this process was cancelled that has to go on: by none of us, so by what it called."""


def failure_of(tasks: Iterable[asyncio.Task[None]], *, go_on: bool = False) -> BaseException | None:
    """The first error with which one of these tasks has ended. Where they were to `go_on`, a cancellation is one: taken for an
    end in order, it would end the process without a word."""
    for task in tasks:
        if not task.done():
            continue
        if task.cancelled():
            if go_on:
                return Cancelled(f"{task.get_name()!r} was cancelled by what it called, as by a codec of the app")
        elif (error := task.exception()) is not None:
            return error
    return None


def end_within(limit_s: float, code: int) -> Callable[[], None]:
    """Ends this process with `code` after so many seconds, unless the returned function is called before."""
    timer = threading.Timer(limit_s, _end, (asyncio.get_running_loop(), limit_s, code))
    timer.daemon = True
    timer.start()
    return timer.cancel


def _end(loop: asyncio.AbstractEventLoop, limit_s: float, code: int) -> None:
    lines = [
        f"process {os.getpid()} did not end within {limit_s:g} s of its last work, and is ended; nothing of its tasks is lost. It waits for:"
    ]
    try:
        lines += [f"  {shown(task)}" for task in asyncio.all_tasks(loop)]
    except RuntimeError as error:  # the set changed while another thread looked at it
        lines.append(f"  {error}")
    names = {thread.ident: thread.name for thread in threading.enumerate() if thread is not threading.current_thread()}
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident in names}
    lines += [f"  thread {names[ident]}: {_at(frame)}" for ident, frame in frames.items() if not _is_idle(frame)]
    os.write(2, ("\n".join(lines) + "\n").encode())
    os._exit(code)


def shown(task: asyncio.Task[object]) -> str:
    """The name of a task, and where it waits, the innermost place last."""
    found: list[str] = []
    awaited: object = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            found.append(_place(frame))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None) or _generator(awaited)
    return f"task {task.get_name()}: {' > '.join(found[-FRAMES:])}"


def _generator(awaited: object) -> object:
    """What stands behind the next value of a generator that is awaited: the objects between have no names for it."""
    if type(awaited).__name__ not in BETWEEN:
        return None
    found = gc.get_referents(awaited)
    return next((one for one in found if isinstance(one, AsyncGeneratorType) or type(one).__name__ in BETWEEN), None)


def _is_idle(frame: FrameType) -> bool:
    """A thread of a pool that waits for work."""
    return frame.f_code.co_name == "_worker"


def _at(frame: FrameType | None) -> str:
    found: list[str] = []
    while frame is not None:
        found.append(_place(frame))
        frame = frame.f_back
    return " > ".join(reversed(found[:FRAMES]))


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
