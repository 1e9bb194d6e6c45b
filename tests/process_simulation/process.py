"""A simulated process: the unit that is started, stopped, continued and killed.

One rule: what a process does runs in a context that names it; the loop runs nothing for a process that is dead or
stopped. A dead process leaves behind what the operating system lets go of: locks, connections, ports, pipes.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.process_simulation.loop import VirtualLoop

CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
RUNNING, STOPPED, DEAD = "running", "stopped", "dead"


class ProcessGone(BaseException):
    """A dead process was made to do something: unwinds what is left of its call."""


def current() -> Process:
    process = CURRENT.get()
    if process is None:
        raise RuntimeError("no simulated process runs this")
    if process.state == DEAD:
        raise ProcessGone(process.name)
    return process


class Process:
    """One process. `main` runs in it; what it returns is the exit code."""

    def __init__(self, loop: VirtualLoop, name: str, parent: Process | None = None) -> None:
        self.loop = loop
        self.name = name
        self.parent = parent
        self.since = loop._now  # of its state
        self.state = RUNNING
        self.code: int | None = None
        self.children: list[Process] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.parked: list[asyncio.Handle] = []
        self.threads: list[Thread] = []
        self.handed: deque[Callable[[], object]] = deque()  # to other threads, in order
        self.at_end: list[Callable[[], None]] = []
        self.busy_until = 0.0
        self.computing: list[tuple[float, float, Any, int]] = []  # see `watching`
        self.records: Any = None  # the record loop of a worker, once it has a connection
        self.requests: list[bytes] = []  # of its parent
        self.signals: list[int] = []
        self.is_killed_by_parent = False
        self.asked_at: float | None = None  # when it was first asked to end, in seconds
        self.steps_left = 0
        self.after_steps: Callable[[], object] = lambda: None
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)
        self._handlers: dict[int, Callable[[], None]] = {}
        self._waiting: list[asyncio.Future[int]] = []
        self._pipe: asyncio.Protocol | None = None
        self._unread: list[bytes] = []
        self._pipe_ended = False
        if parent is not None:
            parent.children.append(self)

    def __repr__(self) -> str:
        return f"<{self.name} {self.state}>"

    def start(self, main: Coroutine[Any, Any, int]) -> None:
        self.loop.create_task(self._live(main), context=self.context)

    async def _live(self, main: Coroutine[Any, Any, int]) -> None:
        """What asyncio.run does: the main task, then every other task is cancelled, then the process ends."""
        try:
            code = await main
        except Exception as error:
            if self.state == DEAD:
                raise
            self.loop.tell(f"{self.name} failed: {type(error).__name__}: {error}")
            self.loop.unforeseen.append(error)
            code = 1
        mine = asyncio.current_task()
        rest = [task for task in self.tasks if task is not mine and not task.done()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self.end(code)

    # ---- its end

    def end(self, code: int) -> None:
        """The process is no more; below 0: by that signal."""
        if self.state == DEAD:
            return
        self.state, self.code, self.since = DEAD, code, self.loop._now
        self.loop.tell(f"{self.name} ended with {code}")
        self.parked.clear()
        for clean in self.at_end:
            clean()
        for thread in self.threads:
            thread.end(code)
        for child in self.children:
            child.end_pipe()
        for waiting in self._waiting:
            self.loop.resolve(waiting, code)

    def exit(self, code: int) -> None:
        """os._exit of the process that calls it."""
        self.end(code)
        raise ProcessGone(self.name)

    async def wait(self) -> int:
        """Returns the exit code; called by another process."""
        if self.code is not None:
            return self.code
        waiting: asyncio.Future[int] = self.loop.create_future()
        self._waiting.append(waiting)
        return await waiting

    # ---- a long call, seen from beside it

    def computes(self, begin: float, end: float) -> None:
        """The call under way lasts so long: for the loop it is a moment, for a thread of the process it is not."""
        turn = self.records._turn_under_way if self.records is not None else None
        if turn is not None:
            self.computing.append((begin, end, turn, turn.process.finished))

    def watching(self, watch: Callable[[], str]) -> Callable[[], str]:
        """`watch`, the record loop's long_call, as it answers at this moment of virtual time."""
        self.records = watch.__self__  # type: ignore[attr-defined]

        def look() -> str:
            now = self.loop._now
            self.computing = [one for one in self.computing if one[1] > now]
            for begin, _, turn, finished in self.computing:
                if begin <= now:
                    later = self.records._turn_under_way, turn.process.finished
                    self.records._turn_under_way, turn.process.finished = turn, finished
                    try:
                        return watch()
                    finally:
                        self.records._turn_under_way, turn.process.finished = later
            return watch()

        return look

    # ---- signals

    def on_signal(self, number: int, handler: Callable[[], None]) -> None:
        self._handlers[number] = handler

    def signal(self, number: int) -> None:
        if self.state == DEAD:
            return
        self.loop.tell(f"{self.name} gets {signal.Signals(number).name}")
        self.signals.append(number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            self.asked_to_end()
        if number == signal.SIGKILL:
            self.end(-number)
        elif number == signal.SIGSTOP:
            self.state, self.since = STOPPED, self.loop._now
            for thread in self.threads:
                thread.state = STOPPED
        elif number == signal.SIGCONT:
            if self.state == STOPPED:
                self.state, self.since = RUNNING, self.loop._now
                self.loop.unpark(self)
                for thread in self.threads:
                    thread.state = RUNNING
                    self.loop.unpark(thread)
        elif number in self._handlers:
            self.loop.call_soon(self._handlers[number], context=self.context)
        else:
            self.end(-number)

    # ---- its standard input

    def write_line(self, line: bytes) -> None:
        if self.state != DEAD and not self._pipe_ended:
            self._unread.append(line + b"\n")
            self.loop.call_later(0.0005, self._read, context=self.context)

    def asked_to_end(self) -> None:
        if self.asked_at is None:
            self.asked_at = self.loop._now

    @property
    def parent_is_dead(self) -> bool:
        return self.parent is not None and self.parent.state == DEAD

    def end_pipe(self) -> None:
        self.asked_to_end()
        if self.state != DEAD:
            self._pipe_ended = True
            self.loop.call_later(0.0005, self._read, context=self.context)

    def attach(self, protocol: asyncio.Protocol) -> None:
        self._pipe = protocol
        self._read()

    def _read(self) -> None:
        if self._pipe is None:
            return
        unread, self._unread = self._unread, []
        for line in unread:
            self._pipe.data_received(line)
        if self._pipe_ended:
            self._pipe_ended = False
            self._pipe.eof_received()


class Thread(Process):
    """A thread of a process: lives, stops and ends with it, and goes on where the process computes."""

    def __init__(self, owner: Process) -> None:
        super().__init__(owner.loop, f"{owner.name} (thread)")
        self.state = owner.state
        owner.threads.append(self)

    def end(self, code: int) -> None:
        self.state = DEAD
        self.parked.clear()
        for clean in self.at_end:
            clean()
