"""Standard output and error of the command line, which may have no reader any more.

One rule: what a command does depends on no reader of its lines. What stands on standard error is lost where it cannot be
written, and the command goes on; so it does where the reader of its answer has gone, and its exit code stays what it is. A
command that only reads and prints ends with its reader. Called by main.py, before a command begins.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from orchestrator.error_report import NO_SPACE, AnswerUnwritten, ReaderGone, mute

# Commands that only read and print, some of them without an end: `| head -1` is to end them.
READERS = {"consume", "status", "table", "query", "history", "explain"}


class _Progress(io.FileIO):
    """Loses what cannot be written. After a full disk it is tried again with the next line; a pipe has no reader ever again."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)  # None of a pipe that is full and not to be waited for
        except BrokenPipeError:
            mute(2)
        except OSError:
            pass
        return len(data)


class _Answer(io.FileIO):
    """Goes on without a reader. What else keeps it from being written is an error."""

    def write(self, data: Any, /) -> Any:
        try:
            return _written(super().write, data)
        except BrokenPipeError:
            mute(1)
            return len(data)


class _AnswerAlone(io.FileIO):
    """Ends the command without a reader: there is nothing else that it does."""

    def write(self, data: Any, /) -> Any:
        try:
            return _written(super().write, data)
        except BrokenPipeError as error:
            mute(1)  # for what is left in the buffer: the interpreter must not try again when it ends
            raise ReaderGone(*error.args) from error


def _written(write: Callable[[Any], Any], data: Any) -> Any:
    """An error of the system names no file: this one is known here alone. Raises AnswerUnwritten."""
    try:
        return write(data)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise AnswerUnwritten(*error.args) from error
        raise


def guard(command: str) -> None:
    """Both streams of this process, for a command that is about to run. What its module or a library has taken of them before
    is not guarded."""
    sys.stdout = _through(sys.stdout, (_AnswerAlone if command in READERS else _Answer)(1, "w", closefd=False))
    sys.stderr = _through(sys.stderr, _Progress(2, "w", closefd=False))


def _through(stream: Any, raw: io.FileIO) -> io.TextIOWrapper:
    """The same stream through another file."""
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),  # as the interpreter has it
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
