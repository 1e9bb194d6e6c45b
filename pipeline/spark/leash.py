"""The executor's end of the connection between an instance in a Spark task and the driver that submitted it.

One rule: an instance obeys a pipe, as one of a local fleet obeys its standard input; a thread here writes into it what the
driver orders, and ends it where no driver has been reached for `ALONE_S`. Neither the disk nor the numbers of processes need
be shared with the driver. In the flow: hosting (the Spark task) -> `Leash` -> leash_server.py (the driver).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.transport import connect
from orchestrator.errors import OrchestratorError
from workers.fleet.presence import started
from workers.spec import BOUNCE, LEAVE, STOP

ALONE_S = 20.0  # without a driver, before an instance stops in order
AGAIN_S = 0.25
BOOT, PIDS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")

Word = Literal["leave", "stop", "bounce", "kill"]


class Process(msgspec.Struct, frozen=True):
    """A process, and the kernel that counts it; `kernel` "" where the operating system does not name it."""

    pid: int
    started: str
    kernel: str


class Hosted(msgspec.Struct, tag="hosted", frozen=True):
    """The first message of a process: which instance it is, by the group of its Spark job and the attempt of its task."""

    group: str
    attempt: int
    host: str
    stage: int
    task: int  # the id of the attempt in all of Spark's application
    process: Process


class Order(msgspec.Struct, tag="order", frozen=True):
    """What an instance is to do: hand over and end, stop as on SIGTERM, stop in order whatever SIGTERM means to it, or end at
    once."""

    word: Word


_order = msgspec.msgpack.Decoder(Order)


class DriverAway(OrchestratorError):
    """A Spark task cannot reach its driver."""


def kernel() -> str:
    """What two processes have in common whose numbers mean the same; "" where that cannot be known."""
    try:
        return f"{BOOT.read_text().strip()} {PIDS.readlink()}"
    except OSError:
        return ""


def this_process() -> Process:
    """The process that calls."""
    return Process(os.getpid(), started(os.getpid()) or "", kernel())


def hosted(group: str, attempt: int, stage: int, task: int) -> Hosted:
    """The introduction of this process."""
    return Hosted(group, attempt, socket.gethostname(), stage, task, this_process())


class Leash:
    """While it is entered, the driver reaches this process. `descriptor` is what `run_instance` takes."""

    def __init__(self, address: str, credentials: Credentials, introduction: Hosted, alone_s: float = ALONE_S) -> None:
        self._address = address
        self._credentials = credentials
        self._introduction = introduction
        self._alone_s = alone_s
        self._obeyed: set[Word] = set()  # an order comes again with each connection
        self._reached = threading.Event()
        self._failure: OrchestratorError | None = None
        self._own_host = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="leash", daemon=True)
        self._holding: asyncio.Task[None] | None = None
        self._write = -1
        self.descriptor = -1

    def __enter__(self) -> Leash:
        """Returns once the driver was reached. Raises what `connect` raised, where that was not possible."""
        self.descriptor, self._write = os.pipe()
        self._thread.start()
        self._reached.wait()
        if self._failure is not None:
            self._end()
            raise self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @property
    def own_host(self) -> str:
        """The address of this machine on its way to the driver."""
        return self._own_host

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()
        self._let_go()
        os.close(self.descriptor)

    def _let_go(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    # ---- the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner, contextlib.suppress(asyncio.CancelledError):
                runner.run(self._begin())
        finally:
            self._let_go()
            self._reached.set()

    async def _begin(self) -> None:
        self._holding = asyncio.current_task()
        await self._hold()

    def _cancel(self) -> None:
        if self._holding is not None:
            self._holding.cancel()

    async def _hold(self) -> None:
        """Until no driver can be reached any more, and the pipe ends."""
        since = monotonic_s()
        while True:
            try:
                connection = await connect(self._address, self._credentials)
            except OrchestratorError as error:
                # A secret that does not fit, or TLS that is missing, is no better the next time.
                final = not isinstance(error, ConnectionEnded)
                if (final and not self._reached.is_set()) or monotonic_s() - since > self._alone_s:
                    self._failure = error if final else self._away(error)
                    return
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await self._obey_all(connection)
            except OrchestratorError:  # the connection ended, or what came is no order: it is made again
                since = monotonic_s()
            finally:
                await connection.close()
            await asyncio.sleep(AGAIN_S)

    def _away(self, error: OrchestratorError) -> DriverAway:
        return DriverAway(
            f"the Spark task on {self._introduction.host} cannot reach its driver at {self._address} ({error}); name an "
            "address of the driver that executors reach with --listen HOST:PORT"
        )

    async def _obey_all(self, connection: Connection) -> None:
        connection.notice_a_dead_host()
        connection.send(self._introduction)
        self._own_host = connection.own_host
        self._reached.set()
        while True:
            body = await connection.receive()
            try:
                order = _order.decode(body)
            except (msgspec.MsgspecError, ValueError) as error:
                raise DriverAway(f"no order: {error}") from None
            self._obey(order.word)

    def _obey(self, word: Word) -> None:
        if word in self._obeyed:
            return
        self._obeyed.add(word)
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)  # the pipes of its workers end with it, and they with them
        elif self._write >= 0:
            os.write(self._write, {"stop": STOP, "bounce": BOUNCE, "leave": LEAVE}[word])
