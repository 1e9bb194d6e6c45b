"""A worker's session with the coordinator: found through the lease, joined, kept, found again.

One rule: no coordinator is no reason to stop. Tasks go on as long as their commits succeed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator import messages
from orchestrator.beats import Speaker
from orchestrator.errors import ProtocolError
from orchestrator.member_events import Assigned, Measured, Progress, SessionOpened, WriterLost
from orchestrator.model import Hello, TaskId, TaskRange
from orchestrator.transport import Connection, ConnectionEnded, connect
from orchestrator.versions import ranges
from orchestrator.weights import with_given
from state.errors import StateError

if TYPE_CHECKING:
    from workers.worker import Worker

log = logging.getLogger("orchestrator.session")
RETRY_S = 0.1
LOOK_S = 1.0  # well within the rejoin grace


class Session:
    """One worker's side of the connection."""

    def __init__(self, worker: Worker) -> None:
        spec = worker.spec
        self._worker = worker
        self._connection: Connection | None = None
        self._speaker: Speaker | None = None  # of that connection
        self._wanted = asyncio.Event()
        member = f"{spec.instance.instance}.{spec.number}" if spec.instance.workers > 1 else spec.instance.instance
        self.hello = Hello(
            member=member,
            instance=spec.instance.instance,
            incarnation=spec.incarnation,
            writer=f"{spec.instance.application}-{member}-{spec.incarnation}",
            zone=spec.instance.zone,
            host=socket.gethostname(),
            pid=os.getpid(),
            tasks=self._tasks(),
        )

    def _tasks(self) -> tuple[TaskRange, ...]:
        worker = self._worker
        return ranges(with_given(worker.prepared.tasks(), worker.spec.instance.task_weights))

    # ---- sending

    def send_soon(self) -> None:
        """Something changed: the heartbeat loop sends the whole status at once."""
        self._wanted.set()

    def send_now(self) -> None:
        if self._connection is not None and self._speaker is not None:
            self._connection.send(self._speaker.say(self._worker.machine.status()))

    async def beat(self) -> None:
        """A heartbeat every interval, and at once when something changed."""
        interval = self._worker.spec.instance.settings.heartbeat_ms / 1000
        while True:
            try:
                async with asyncio.timeout(interval):  # wait_for swallows a cancellation that comes with the event
                    await self._wanted.wait()
            except TimeoutError:
                await self._measure()
            self._wanted.clear()
            self.send_now()

    async def _measure(self) -> None:
        """Positions of running tasks, for those who compare copies with them."""
        worker = self._worker
        lags = await worker.processing.input_lags()
        for run in worker.processing.active():
            position = run.position()
            worker.tell(Progress(run.id, position, position))
        worker.tell(
            Measured(
                {
                    run.id: (lags.get(run.scope, 0), run.state_bytes(), run.records, run.pause_ms)
                    for run in worker.processing.active()
                }
            )
        )

    # ---- the connection

    async def run(self) -> None:
        """Connect, listen, and again, until cancelled."""
        while True:
            try:
                await self._once()
            except (ConnectionEnded, ProtocolError) as error:
                log.debug("session: %s", error)
            finally:
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
            await asyncio.sleep(RETRY_S)

    async def _once(self) -> None:
        worker = self._worker
        lease = await worker.log.lease(worker.application)
        if lease is None or not lease.address:
            return
        connection = await connect(lease.address)
        self._connection, writer = connection, self.hello.writer
        self._join(connection)
        looking = asyncio.create_task(self._look_for_another(lease.term, connection))
        try:
            await self._listen(connection, writer)
        finally:
            looking.cancel()

    async def _look_for_another(self, term: int, connection: Connection) -> None:
        """A coordinator that hangs keeps its connections: nothing but the lease says that there is another by now."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                lease = await self._worker.log.lease(self._worker.application)
            except StateError as error:
                log.debug("session: %s", error)
                continue
            if lease is not None and lease.term > term:
                log.info(
                    "term %d is over, though its coordinator keeps the connection; asking that of term %d",
                    term,
                    lease.term,
                )
                await connection.close()
                return

    async def _listen(self, connection: Connection, writer: str) -> None:
        """Until the connection ends."""
        worker = self._worker
        while True:
            message = await connection.receive_down()
            if self._connection is not connection:
                return
            match message:
                case messages.Welcome(term, changes):
                    if self._speaker is not None:
                        self._speaker.changes = changes
                    worker.tell(SessionOpened(term))
                case messages.Assign(assignment):
                    worker.tell(Assigned(assignment))
                case messages.Closed(fenced, reason):
                    log.info("session closed: %s", reason)
                    if fenced and self.hello.writer == writer:
                        worker.tell(WriterLost())
                    return
                case messages.Lookup():
                    connection.send(self._look_up(message))
                case messages.Answer():
                    pass

    def _join(self, connection: Connection) -> None:
        status = self._worker.machine.status()
        self._speaker = Speaker(status)
        connection.send(messages.Join(messages.VERSION, self._worker.application, self.hello, status))

    def say_hello_again(self) -> None:
        """There are other tasks now. The same incarnation says so over the same connection, so that nobody takes it for
        silent in between, and nothing it runs is touched."""
        self.hello = replace(self.hello, tasks=self._tasks())
        if self._connection is not None:
            self._join(self._connection)

    def rejoin(self) -> None:
        """Come back as a new incarnation: the old writer id is never used again."""
        incarnation = secrets.token_hex(4)
        self.hello = replace(
            self.hello, incarnation=incarnation, writer=f"{self._worker.application}-{self.hello.member}-{incarnation}"
        )
        connection, self._connection = self._connection, None
        if connection is not None:
            task = asyncio.get_running_loop().create_task(connection.close())
            task.add_done_callback(lambda _: None)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    # ---- queries

    def _look_up(self, lookup: messages.Lookup) -> messages.Found:
        run = self._worker.runs.get(TaskId.parse(lookup.task))
        opened = run.stores.get(lookup.table) if run is not None else None
        if run is None or opened is None:
            told = f"{lookup.task} is not open on {self.hello.instance}; try again"
            return messages.Found(lookup.id, None, "", 0, told)
        lag = max(0, sum(run.ends.values()) - run.position()) if run.process is None else 0
        role = "active" if run.process is not None or run.catching_up else "standby"
        return messages.Found(lookup.id, opened.store.get(lookup.key), role, lag)
