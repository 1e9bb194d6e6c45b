"""Ctrl-C while the command line itself is imported: it ends the process with 130, and prints nothing.

One rule: nothing is imported before it that takes time, so that no traceback comes of an interrupt there. `signal` makes enumerations of
its numbers; the module behind it is part of the interpreter.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os


def interrupted(number: int, frame: object) -> None:
    """While modules are imported: a KeyboardInterrupt there can get lost in a callback of the import machinery, and
    nothing has begun yet that would have to end in order."""
    os._exit(130)


def begin() -> None:
    """From now on, unless interrupts are ignored."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, interrupted)
