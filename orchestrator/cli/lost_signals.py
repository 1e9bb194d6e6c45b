"""A signal's exception that gets lost is raised once more.

One rule: a handler that ends a command raises, and what is raised within a callback of the interpreter's own (a weak reference's, as
imports have them, a `__del__`) is shown and dropped: the command went on as if nothing had come, and `run` ran for ever. Set
by main.py, for processes that are all ours.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs
    from types import FrameType

AGAIN_S = 0.001
_state: dict[str, Any] = {"is ours": False}


def send_again(before: Callable[[UnraisableHookArgs], object]) -> None:
    """From now on, by the main thread. `before` shows what is lost and is none of these."""

    def lost(unraisable: UnraisableHookArgs) -> None:
        try:
            number = _signal_of(unraisable.exc_value)
            if number is None or signal.getsignal(number) in (signal.SIG_IGN, signal.SIG_DFL, None):
                before(unraisable)
            else:
                _send(number)
        except (KeyboardInterrupt, SystemExit) as raised:  # one that comes meanwhile would be dropped here too
            number = _signal_of(raised)
            if number is not None:
                _send(number)

    sys.unraisablehook = lost
    _state.update({"is ours": True, "hook": lost.__code__, "main thread": _thread.get_ident()})


def ends() -> None:
    """A signal ends the command: what it was about to make, an event loop for example, is left half made, and complains as it is
    freed. In a process of ours that is not shown."""
    if _state["is ours"]:
        sys.unraisablehook = lambda unraisable: None
        warnings.simplefilter("ignore")


def _signal_of(error: BaseException | None) -> int | None:
    if isinstance(error, SystemExit):
        return signal.SIGTERM if error.code == 128 + signal.SIGTERM else None
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def _send(number: int) -> None:
    with suppress(RuntimeError):  # no thread can be made any more: it ends already
        _thread.start_new_thread(_sent, (number, _state["main thread"]))  # here it would be lost once more


def _sent(number: int, main_thread: int) -> None:
    """Not while the main thread is still in that hook: with much to do it may be there for longer than one pause."""
    time.sleep(AGAIN_S)
    while _in_the_hook(sys._current_frames().get(main_thread)):
        time.sleep(AGAIN_S)
    os.kill(os.getpid(), number)


def _in_the_hook(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _state["hook"]:
            return True
        frame = frame.f_back
    return False
