"""A worker's session with the coordinator: found through the lease, joined, kept, found again.

One rule: no coordinator is no reason to stop. Tasks go on as long as their commits succeed. What changes is how they are
made: see `guarantee`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from msgspec.structs import replace

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.handshake import NothingProven, NotTrusted
from orchestrator.errors import ProtocolError, WrongUse
from orchestrator.group.topology_versions import ranges
from orchestrator.member.events import Assigned, Noticed, SessionOpened, WriterLost
from orchestrator.model import JoinRequest, TaskRange, up_to
from orchestrator.weights import with_given
from state.errors import Fenced, StateError
from state.log.protocol import EXACTLY_ONCE, Guarantee, MayWrite, always
from workers.connection.asking import Place
from workers.connection.contact import Contact
from workers.connection.listening import reached_at
from workers.connection.uplink import Caller, Line, Uplink
from workers.worker.ports import SessionPort

log = logging.getLogger("orchestrator.session")
RETRY_S = 0.1
REFUSED_MAX_S = 1.0  # between tries that are refused: with TLS each costs the coordinator a handshake
ALONE_S = 15.0  # longer than another coordinator takes to be there
LOOK_S = 1.0  # well within the rejoin grace


class Session:
    """One worker's side of the connection."""

    def __init__(self, worker: SessionPort) -> None:
        spec = worker.spec
        self._worker = worker
        self._line: Line = worker.surroundings.new_line()
        self._uplink: Uplink | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self._opened = ""  # the transactional id that the log knows as ours
        member = f"{spec.instance.instance}.{spec.number}" if spec.instance.workers > 1 else spec.instance.instance
        self.join_request = JoinRequest(
            member=member,
            instance=spec.instance.instance,
            incarnation=spec.incarnation,
            writer=f"{spec.instance.application}-{member}-{spec.incarnation}",
            capacity=spec.instance.capacity,
            zone=spec.instance.zone,
            host=socket.gethostname(),
            pid=os.getpid(),
            tasks=self._tasks(),
            address=reached_at(spec.instance.advertise, spec.address),
            guarantee=worker.prepared.app.guarantee,
            instance_incarnation=spec.instance_incarnation,
            app_version=worker.surroundings.app_version(worker.prepared.app),
            package_version=worker.surroundings.package_version(),
            protocols=up_to(spec.instance.settings.protocol),
        )
        self._clock = worker.surroundings.clock
        self._contact = Contact(worker.surroundings.contact_clock)
        self._credentials = worker.surroundings.credentials(spec.instance)
        self._refused = ""  # the last reason, which is logged once
        self._alone_since: float | None = self._clock()  # None: it is connected, or that it is not was logged

    def _tasks(self) -> tuple[TaskRange, ...]:
        worker = self._worker
        return ranges(with_given(worker.prepared.tasks(), worker.spec.instance.task_weights))

    def guarantee(self) -> tuple[Guarantee, MayWrite]:
        """How the next commit is made. One at least once that nothing would fence takes a transaction instead where no
        coordinator is known to have received a heartbeat of this worker lately: so nothing has to stop, and a fence stops it."""
        log_, wanted = self._worker.log, self._worker.prepared.app.guarantee
        if log_.fences(wanted):
            return wanted, always
        if not self._contact.may_begin():
            return EXACTLY_ONCE, always
        return wanted, self._contact.may_write

    # ---- sending

    def send_soon(self) -> None:
        """The status has changed: the heartbeat loop sends all of it at once."""
        self._wanted.set()

    def send_now(self) -> None:
        if self._uplink is not None:
            self._uplink.publish(self._worker.status())

    async def beat(self) -> None:
        """A heartbeat every interval, and at once when the status has changed. It waits for nothing else, not for the log."""
        interval = self._worker.spec.instance.settings.heartbeat_ms / 1000
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._worker.pulse.left_s(interval)
                ):  # wait_for swallows a cancellation that comes with the event
                    await self._wanted.wait()
            self._worker.event(Noticed(self._worker.notice(), bool(self._worker.log_waits())))
            self._wanted.clear()
            self.send_now()

    # ---- the connection

    async def run(self) -> None:
        """Connect, listen, and again, until cancelled."""
        pause_s = RETRY_S
        while True:
            is_refused = False
            try:
                await self._once()
            except (ConnectionEnded, ProtocolError) as error:
                is_refused = isinstance(error, NothingProven)
                log.debug("session: %s", error)
                if self._alone_since is not None and self._clock() - self._alone_since >= ALONE_S:
                    log.warning("no session with the coordinator for %.0f s: %s", ALONE_S, error)
                    self._alone_since = None
            except (NotTrusted, WrongUse) as error:
                is_refused = True
                if str(error) != self._refused:
                    log.warning("no session with the coordinator: %s", error)
                self._refused = str(error)
            finally:
                if self._uplink is not None:
                    await self._uplink.close()
                    self._uplink = None
                    self._alone_from_now()
            pause_s = pause_s if is_refused else RETRY_S
            await asyncio.sleep(pause_s)
            pause_s = min(REFUSED_MAX_S, pause_s * 2)

    def _alone_from_now(self) -> None:
        self._alone_since, self._refused = self._clock(), ""

    async def _once(self) -> None:
        worker = self._worker
        lease = await worker.log.lease(worker.application)
        if lease is None or not lease.address:
            return
        if not await self._open_writer():
            return
        uplink = await self._line.open(Place(lease.term, lease.address), self._caller())
        if self._opened != self.join_request.writer:  # fenced meanwhile: the log does not know the new id yet
            await uplink.close()
            return
        self._alone_since = None
        self._uplink, writer = uplink, self.join_request.writer
        self._join(uplink)
        looking = asyncio.create_task(self._look_for_another(uplink))
        try:
            await self._listen(uplink, writer)
        finally:
            looking.cancel()

    def _caller(self) -> Caller:
        spec = self._worker.spec
        heartbeat_s = spec.instance.settings.heartbeat_ms / 1000
        return Caller(self._credentials, heartbeat_s, self._worker.long_call, self._contact, spec.address)

    async def _open_writer(self) -> bool:
        """Have the log know the transactional id that joins, also where a fence gave the worker another one while the log
        was waited for; False where that id is fenced already."""
        worker = self._worker
        while self._opened != self.join_request.writer:
            writer = self.join_request.writer
            try:
                await worker.log.open_writer(worker.application, writer)
            except Fenced:  # silent since it was made: come back under another
                if writer == self.join_request.writer:
                    self.rejoin()
                return False
            self._opened = writer
        return True

    async def _look_for_another(self, uplink: Uplink) -> None:
        """A coordinator that hangs keeps its connections: nothing but the lease says that there is another by now."""
        while True:
            await self._worker.pulse.next(LOOK_S)
            try:
                lease = await self._worker.log.lease(self._worker.application)
            except StateError as error:
                log.debug("session: %s", error)
                continue
            if lease is not None and lease.term > (term := uplink.term):
                log.info(
                    "term %d is over, though its coordinator keeps the connection; asking that of term %d",
                    term,
                    lease.term,
                )
                await uplink.close()
                return

    async def _listen(self, uplink: Uplink, writer: str) -> None:
        """Until the connection ends."""
        worker = self._worker
        while True:
            message = await uplink.receive()
            if self._uplink is not uplink:
                return
            match message:
                case messages.Welcome(term, changes):
                    uplink.understands_changes(changes)
                    worker.event(SessionOpened(term))
                    worker.term_began(term)
                case messages.Assign(assignment):
                    worker.event(Assigned(assignment))
                case messages.Closed(fenced, reason):
                    log.info("session closed: %s", reason)
                    if fenced and self.join_request.writer == writer:
                        worker.event(WriterLost())
                    return
                case messages.Lookup() | messages.Answer():
                    raise ProtocolError(f"{type(message).__name__} is no message of a coordinator")

    def _join(self, uplink: Uplink) -> None:
        uplink.join(self._worker.application, self.join_request, self._worker.status())

    def join_again(self) -> None:
        """There are other tasks now. The same incarnation announces it over the same connection, so that it is not taken for
        silent in between, and nothing it runs is touched."""
        self.join_request = replace(self.join_request, tasks=self._tasks())
        if self._uplink is not None:
            self._join(self._uplink)

    def rejoin(self) -> None:
        """Come back as a new incarnation: the old writer id is never used again."""
        incarnation = self._worker.surroundings.new_id()
        self.join_request = replace(
            self.join_request,
            incarnation=incarnation,
            writer=f"{self._worker.application}-{self.join_request.member}-{incarnation}",
        )
        self._contact = Contact(self._worker.surroundings.contact_clock)
        uplink, self._uplink = self._uplink, None
        if uplink is not None:
            self._alone_from_now()
            task = asyncio.get_running_loop().create_task(uplink.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        if self._uplink is not None:
            await self._uplink.close()
        self._line.close()
