"""`orchestrator COMMAND ...`: finds the command in the table, calls it, and sees its answer written.

One rule: an error is one line on stderr, `error: what; where; what to do`, and an exit code of the table in cli.md;
never a traceback of ours unless --debug is given. Errors are written by error_report.py. This module imports
nothing but that, the table, its neighbours here and the standard library.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import FrameType

from orchestrator.cli import early, lost_signals, standard_streams
from orchestrator.cli.commands import COMMANDS, place_called
from orchestrator.error_report import ReaderGone, fail, is_unwritable, mute, report, written_out

TERMINATED = 128 + signal.SIGTERM
CO_COROUTINE, CO_ASYNC_GENERATOR = 0x80, 0x200  # of a code's flags, as `inspect` names them


def usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name.ljust(width)}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: orchestrator COMMAND [APP] [options]\n\n"
        f"{rows}\n\n`orchestrator COMMAND --help` tells the options of a command. APP is MODULE:APP, or the application id\n"
        "for commands that need no code. Exit codes: 0 done, 1 failed, 2 wrong use, 3 refused by a safety rule,\n"
        "4 timed out, 5 key not there, 6 log not usable for long, 130 interrupted, 143 terminated."
    )


def main(argv: Sequence[str]) -> int:
    """Run a command and see its answer written; returns the exit code."""
    try:
        return written_out(_written(argv))
    except SystemExit:
        written_out(0)
        raise


def _written(argv: Sequence[str]) -> int:
    try:
        code = _run(argv)
    except OSError as error:
        if not is_unwritable(error):
            raise
        mute(1)  # the interpreter must not try again when it ends
        return 0 if isinstance(error, ReaderGone) else report(error)
    try:
        print(end="", flush=True)
    except OSError as error:
        mute(1)
        return code if isinstance(error, BrokenPipeError) else code or report(error)
    return code


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(version("stream-orchestrator"))
        return 0
    if broken := next((word for word in argv if not is_text(word)), None):
        return fail(f"the argument {printable(broken)} is not UTF-8; write it in UTF-8, or rename what it names", 2)
    name, rest = argv[0], list(argv[1:])
    known = COMMANDS.get(name)
    if known is None:
        close = get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else "`orchestrator --help` lists them"
        return fail(f"no command '{name}'; {hint}", 2)
    debug = "--debug" in rest
    rest = [word for word in rest if word != "--debug"]
    try:
        command = place_called(known[0])
        if signal.getsignal(signal.SIGINT) is early.interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(command(rest))
    except KeyboardInterrupt:
        lost_signals.ends()
        return 130
    except Exception as error:
        if (ended := _asked_to_end(error)) is not None:
            return ended
        if debug or is_unwritable(error):
            raise
        if why := _folder_is_no_place(error):
            return fail(f"{why} run the command in another folder", 2)
        return report(error)


def _asked_to_end(error: BaseException | None) -> int | None:
    """The exit code of a signal that came while a class was made: Python before 3.12 raises a RuntimeError from whatever ends
    a `__set_name__`. None where it was no signal: an app that ends the program when it is imported has another code."""
    seen: list[BaseException] = []  # an error may be named as its own cause
    while error is not None and not isinstance(error, SystemExit | KeyboardInterrupt):
        seen.append(error)
        error = None if error.__cause__ in seen else error.__cause__
    if isinstance(error, SystemExit):
        return TERMINATED if error.code == TERMINATED else None
    return None if error is None else 130


def _folder_is_no_place(error: Exception) -> str:
    """What is to be done about the current folder, where that is why a command failed; "" where it is not."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        return "the current folder was deleted; make it again and enter it, or" if isinstance(error, OSError) else ""
    if isinstance(error, UnicodeEncodeError) and not is_text(here):
        return f"the folder {printable(here)} is not UTF-8; rename it, or"
    return ""


def is_text(word: str) -> bool:
    """False where bytes that are no UTF-8 were given: they cannot be sent, kept or compared with a name."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(word: str) -> str:
    return word.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")


def entry() -> None:
    """The console script."""
    _open_what_is_closed()
    standard_streams.guard(*sys.argv[1:2] or [""])
    handle_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except SystemExit as ending:
        if ending.code == TERMINATED:
            lost_signals.ends()
        raise


def handle_signals() -> None:
    """Those of a process of our own. As its very last step the interpreter gives signals back to the system, and one that comes
    then would end it with another code than the one it ends with: from the last callback on they are ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        atexit.register(signal.signal, number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, exit_at_once)
    lost_signals.send_again(sys.unraisablehook)
    early.begin()


def _open_what_is_closed() -> None:
    """A standard stream that the caller closed is nothing to read, and takes whatever is written: without one, an error's own
    line would fail, and the first file that is opened would have its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # processes that it starts have none either
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as long as the process


def exit_at_once(number: int, frame: FrameType | None) -> None:
    """In a coroutine the exit is raised as it is anywhere else. Between two of them it would be raised in the middle of the loop:
    what it has just taken from its queue would be lost, and a task that waits for that never ends, not even cancelled. There a
    callback of its own raises it."""
    running = getattr(sys.modules.get("asyncio"), "get_running_loop", None)  # there is none while it is being imported
    if running is not None and not _is_in_coroutine(frame):
        with suppress(RuntimeError):  # no loop runs, or it has ended
            running().call_soon_threadsafe(sys.exit, 128 + number)
            return
    sys.exit(128 + number)


def _is_in_coroutine(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    entry()
