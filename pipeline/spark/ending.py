"""How a command on Spark ends where it is asked to: what it has begun is undone, and nothing is printed of what Spark says meanwhile.

One rule: the first SIGTERM cancels the command, and what is raised from then on is its end, exit code 143: `timeout`, systemd and
terminals send the signal to Java as well, which ends while the command still calls it. Some send it twice: a second one within a
second is the first, a later one ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from orchestrator.cli.main import exit_at_once
from orchestrator.clocks import monotonic_s
from pipeline.spark.session import no_log_is_needed

T = TypeVar("T")
SAME_S = 1.0
logger = logging.getLogger("orchestrator.spark")


def run_to_its_end(command: Coroutine[Any, Any, T], left: Callable[[], str] = str) -> T:
    """What `asyncio.run` does. Raises SystemExit where SIGTERM came before there was an answer. `left`: what is to be done about what
    the command leaves where it is asked to end, also by Ctrl-C; "" where that is nothing."""
    asked = Asked()

    async def called() -> T:
        with asked.signals():
            return await command

    try:
        return asyncio.run(called())
    except BaseException as error:
        if (asked.at_s is not None or isinstance(error, KeyboardInterrupt)) and (line := left()):
            print(line, file=sys.stderr, flush=True)
        if asked.at_s is None:
            raise
        logger.debug("after SIGTERM: %r", error)
        raise SystemExit(128 + signal.SIGTERM) from None


class Asked:
    """Whether the command was asked to end, and when."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM is ours as long as the process is the command's own, and stays so: its loop ends after this."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def ask(number: int, frame: FrameType | None) -> None:
            now = monotonic_s()
            if self.at_s is None:
                self.at_s = now
                no_log_is_needed()
                with suppress(RuntimeError):  # the loop has ended: there is an answer
                    loop.call_soon_threadsafe(begin)
            elif now - self.at_s > SAME_S:
                os._exit(128 + number)

        def begin() -> None:
            loop.set_exception_handler(lambda _, context: logger.debug("after SIGTERM: %s", context))
            task.cancel()

        if signal.getsignal(signal.SIGTERM) is exit_at_once:
            signal.signal(signal.SIGTERM, ask)
        yield
