"""The event loop of virtual time: one thread, no sockets, no clock; every instance of a life runs on it.

One rule: time passes when nothing is ready, and a little with each callback; which callback runs next is drawn. The
loop is the operating system of the simulated processes: threads are delayed callbacks, sockets are links in memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from typing import Any

from tests.process_simulation.chance import Order, stream
from tests.process_simulation.network import Network
from tests.process_simulation.process import CURRENT, DEAD, RUNNING, Process

STEP_S = 0.00005  # what a callback costs: a process that spins does not stop the clocks
STEPS_MAX = 3_000_000
LOOKS_MAX = 100_000


class Stuck(BaseException):
    """Nothing is ready and nothing is planned, or the life does not end."""


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module text. `trace` has what happened, with the time in seconds."""

    def __init__(self, seed: int, order: Order) -> None:
        super().__init__()
        self._now = 1_000.0
        self._looks = 0
        self._stuck = ""
        self.order = order
        self.network = Network(self, stream(seed, "network"))
        self.threads = stream(seed, "threads")
        self.trace: list[tuple[float, str]] = []
        self.unforeseen: list[BaseException] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._uncaught)

    # ---- time and order

    def time(self) -> float:
        self._looks += 1
        if self._looks > LOOKS_MAX:
            self._stuck = f"a callback has looked at the time {LOOKS_MAX} times, and does not end"
            raise Stuck(self._stuck)
        process = CURRENT.get()
        return self._now if process is None else max(self._now, process.busy_until)

    def tell(self, text: str) -> None:
        self.trace.append((self._now - 1_000.0, text))

    def spend(self, seconds: float) -> None:
        """The process that runs computes for so long: nothing else of it happens meanwhile."""
        process = CURRENT.get()
        if process is not None:
            begin = max(self._now, process.busy_until)
            process.busy_until = begin + seconds
            process.computes(begin, process.busy_until)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("nothing is ready and nothing is planned")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        index = self.order.choose(len(ready))
        if index:
            handle = ready[index]
            del ready[index]
        else:
            handle = ready.popleft()
        if handle._cancelled:
            return
        process = handle._context.get(CURRENT)
        if process is not None and not self._may_run(process, handle):
            return
        if process is not None and process.steps_left:
            process.steps_left -= 1
            if not process.steps_left:
                process.after_steps()
                if not self._may_run(process, handle):
                    return
        if self.order.step > STEPS_MAX:
            raise Stuck(f"the life has not ended after {STEPS_MAX} steps")
        self._now += STEP_S
        self._looks = 0
        try:
            handle._run()
        except SystemExit as error:  # of user code: a process that ends, whatever it was in
            assert process is not None
            process.end(error.code if isinstance(error.code, int) else 1)
        if self._stuck:
            raise Stuck(self._stuck)

    def _may_run(self, process: Process, handle: asyncio.Handle) -> bool:
        if process.state == DEAD:
            return False
        if process.state != RUNNING:
            process.parked.append(handle)
            return False
        if process.busy_until > self._now:
            if not process.parked:
                self.call_at_always(process.busy_until, self.unpark, process)
            process.parked.append(handle)
            return False
        return True

    def unpark(self, process: Process) -> None:
        if process.state == RUNNING:
            parked, process.parked = process.parked, []
            self._ready.extend(parked)  # type: ignore[attr-defined]

    def call_at_always(self, when: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        """A call of nobody: it happens whatever becomes of processes."""
        return self.call_at(when, callback, *args, context=contextvars.Context())

    def call_later_always(self, delay: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        return self.call_at_always(self._now + delay, callback, *args)

    def resolve(self, future: asyncio.Future[Any], value: Any) -> None:
        if not future.done():
            future.set_result(value)

    # ---- what BaseEventLoop asks of a loop

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **more)
        context = more.get("context")
        process = context.get(CURRENT) if context is not None else CURRENT.get()
        if process is not None:
            process.tasks.append(task)
            if len(process.tasks) > 200:
                process.tasks = [one for one in process.tasks if not one.done()]
        return task

    def _uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        process = CURRENT.get()
        if process is not None and process.state == DEAD:
            return
        self.tell(f"uncaught: {context.get('message')}: {error!r}")
        if isinstance(error, Exception):
            self.unforeseen.append(error)

    def _process_events(self, event_list: Any) -> None:
        """There is no selector."""

    def _write_to_self(self) -> None:
        """There is no other thread."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The call runs as a whole, a little later; a caller that is cancelled does not stop it."""
        future: asyncio.Future[Any] = self.create_future()

        def call() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - raised to whoever waits
                if not future.done():
                    future.set_exception(error)
            else:
                self.resolve(future, result)

        self.call_later(self.threads.choice((0.0, 0.0, 0.001, 0.02)), call)
        return future

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        """What one thread hands to another comes there in order."""
        process = CURRENT.get()
        assert process is not None
        return self.hand_over(process, lambda: callback(*args), context)

    def hand_over(self, giver: Process, call: Callable[[], object], context: Any = None) -> asyncio.Handle:
        giver.handed.append(call)
        return self.call_soon(lambda: giver.handed.popleft()(), context=context)

    # ---- sockets, signals, pipes

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(protocol_factory, int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self.network.listen(protocol_factory)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        process = CURRENT.get()
        assert process is not None
        process.on_signal(sig, lambda: callback(*args) and None)

    async def connect_read_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        process = CURRENT.get()
        assert process is not None
        protocol = protocol_factory()
        transport = asyncio.ReadTransport()
        protocol.connection_made(transport)
        process.attach(protocol)
        return transport, protocol
