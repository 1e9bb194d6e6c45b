"""How a run of `produce` ends at a signal: where it is known how many records are written.

One rule: while a batch is on its way the run waits for its answer, so that it reports what is written, and the next run of the same
input writes nothing twice; once all is written a signal changes nothing. A second one ends the run at once, and the line names the records
of which it is not known whether they are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Iterator
from types import FrameType

from orchestrator.cli.main import exit_at_once
from state.errors import LogUnavailable

SILENT_S = 1.0  # an answer that takes longer is waited for aloud


class Ending:
    """Of one run. `written`: how many records are in the log for certain."""

    def __init__(self) -> None:
        self.written = 0
        self.is_whole = False  # the input is read to its end, and all of it is written
        self._under_way = 0
        self._is_kept = False  # what is written is recognised by a later run
        self._signal = 0
        self._hurried = asyncio.Event()  # by a second signal
        self._warning: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the run as the module text says, where they would end the process. Once all is written they have
        no effect: the interpreter would end by them while it shuts down."""
        is_own_process = signal.getsignal(signal.SIGTERM) is exit_at_once
        defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: exit_at_once}
        taken = {number: handler for number, handler in defaults.items() if signal.getsignal(number) is handler}
        for number in taken:
            signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in taken.items():
                signal.signal(number, signal.SIG_IGN if self.is_whole and is_own_process else handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        is_second, self._signal = bool(self._signal), number
        if not self.is_whole and (is_second or not self._under_way):
            exit_at_once(number, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurried.set if is_second else self._warn_later)

    @contextlib.contextmanager
    def batch(self, count: int, *, is_last: bool, is_kept: bool) -> Iterator[None]:
        """Around the writing of so many records. Raises SystemExit behind it where the run was asked to end."""
        self._loop = asyncio.get_running_loop()
        self._under_way, self._is_kept = count, is_kept
        try:
            yield
        except LogUnavailable:  # nothing was written
            self._under_way = 0
            self._exit_if_asked()
            raise
        finally:
            if self._warning is not None:
                self._warning.cancel()
        self.written += count
        self.is_whole = is_last
        self._under_way = 0
        if not is_last:
            self._exit_if_asked()

    def _exit_if_asked(self) -> None:
        if self._signal:
            raise SystemExit(128 + self._signal)

    def _warn_later(self) -> None:
        if self._under_way and self._loop is not None:
            self._warning = self._loop.call_later(SILENT_S, self._warn)

    def _warn(self) -> None:
        what = f"the latest {_records(self._under_way)} {_are(self._under_way)} written"
        print(f"ends once it is known whether {what}; once more ends it at once", file=sys.stderr, flush=True)

    async def unless_hurried(self, last: Awaitable[None]) -> None:
        """What is left to do when all is written: that a later run of the same input is another one. A second signal leaves it out."""
        doing, hurried = asyncio.ensure_future(last), asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait((doing, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))
        if not doing.cancelled():
            await doing

    @property
    def has_begun(self) -> bool:
        """Whether some of the input is written, or may be."""
        return bool(self.written or self._under_way)

    def so_far(self) -> str:
        """What a run that was ended has written."""
        done, left = self.written, self._under_way
        again = "; run it again with the same input, it goes on behind what is written" if self._is_kept else ""
        if left:
            before = f"{_records(done)} {_are(done)} written; " if done else ""
            again = again or "; look at the topic before you run it again"
            return f"{before}whether the next {_records(left)} {_are(left)} written is not known{again}"
        return f"{_records(done)} {_are(done)} written{again}" if done else "nothing was written"


def _records(count: int) -> str:
    return f"{count} record{'s' if count != 1 else ''}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
