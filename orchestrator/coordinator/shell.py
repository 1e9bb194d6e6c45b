"""The coordinator: an asyncio shell around Group. Sessions in, effects out, timers, and what clients ask.

One rule: it decides nothing. Events go into the core one at a time; owner records and fences go to the log in order,
and their results are the next events. It ends as soon as its lease is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.clocks import monotonic_ms, wall_ms
from orchestrator.coordinator import messages
from orchestrator.coordinator.assignment_sender import AssignmentSender
from orchestrator.coordinator.assignor_process import AssignorProcess
from orchestrator.coordinator.election import LEASE_TIMEOUT_MS
from orchestrator.coordinator.heartbeat_delta import DeltaDecoder
from orchestrator.coordinator.ledger import Ledger, NotCoordinator
from orchestrator.coordinator.listener import Peer
from orchestrator.coordinator.moves import reasons
from orchestrator.coordinator.operation_facts import left_by, resumed, taken_back
from orchestrator.coordinator.rates import Rates
from orchestrator.coordinator.requests import Handler, Request, Requests
from orchestrator.coordinator.services import Services
from orchestrator.errors import ProtocolError
from orchestrator.group import events as ev
from orchestrator.group import invariants
from orchestrator.group.step import Group
from orchestrator.group.timeouts import is_calm
from orchestrator.model import EXACTLY_ONCE, Settings, Task, TaskId
from orchestrator.settings import overlaid

log = logging.getLogger("orchestrator.coordinator")
TICK_S, CALM_S = 0.1, 0.5  # between two ticks: while a timeout or a move is pending, and at rest
GENERATION_S = 1.0  # how long the log may miss a generation while tasks change hands: their owner records go before it
RENEW_S = 1.0
HAND_OVERS_KEPT, OUTCOMES_KEPT = 10_000, 100
HEARTBEATS = (messages.StatusDelta, messages.FullStatus)  # a tuple: a union would be made with each of them


class Coordinator:
    """One term of one application. `handlers` are the handlers of what clients may request (admin.py)."""

    opened_by: type[messages.Join] | type[messages.Attach] = messages.Join

    def __init__(
        self,
        application: str,
        settings: Settings,
        ledger: Ledger,
        tasks: Iterable[Task],
        handlers: Mapping[type[Request], Handler],
        *,
        host: str = "",
        former: str = "",
        started_with: int = 0,
        wall_ms: Callable[[], int] = wall_ms,
        on_hand_over: Callable[[ev.HandedOver, ev.HandedOver | None, str], None] = lambda move, known, why: None,
    ) -> None:
        self.application = application
        self.configured = settings  # of the instance that hosts it
        self.settings = settings  # what the group goes by: see live_settings.py
        self.live: Mapping[str, str] = {}
        self.host = host  # the instance whose process this is
        self.former = former  # the instance whose process was the coordinator before and is gone
        self.started_with = started_with  # see GroupState
        self.wall_ms = wall_ms  # deadlines in the log outlive this process, and with it the clock of its loop
        self.on_hand_over = on_hand_over  # called with a published hand-over, its last facts before, and the reason
        self.ledger = ledger
        self.tasks = tuple(tasks)
        self.requests = Requests(handlers)
        self.group = Group(settings, self.tasks, term=ledger.term, now_ms=monotonic_ms())
        self.hand_overs: dict[tuple[TaskId, int], ev.HandedOver] = {}
        self.hand_over_count = 0
        self._reasons: dict[tuple[TaskId, int], str] = {}  # why tasks change hands, by task and epoch
        self.rates = Rates()
        self.outcomes: dict[str, str] = {}  # of the last scale-downs that ended, the latest one last
        self.requested: dict[str, Mapping[str, Any]] = {}  # the last scale-downs, by what their clients call them
        self.operations_lock = asyncio.Lock()  # held from the choice of leavers until they are marked
        self._operations: dict[str, Mapping[str, object]] = {}  # those that run, as the log has them
        self._leavers: Mapping[str, str] = {}  # of those that are over, as the log has them
        self.scale_since = 0  # hand-overs before the last scale-down under this coordinator
        self.plans: dict[str, Any] = {}  # shown and not yet applied
        self._peers: dict[int, Peer] = {}
        self._decoders: dict[int, DeltaDecoder] = {}
        self._renewed_ms = monotonic_ms()  # when the last renewal of the lease that was answered began
        self._statuses: dict[int, int] = {}  # statuses of sessions that want them answered
        self._joined: dict[int, tuple[str, str]] = {}  # member and transactional id of a session
        self._writes: asyncio.Queue[ev.RecordOwners | ev.Fence | ev.OperationEnded] = asyncio.Queue()
        self._left_over: ev.Fence | ev.OperationEnded | None = None  # taken out of it, and to be written next
        self._refusals: asyncio.Queue[NotCoordinator] = asyncio.Queue()  # of writes outside of the loops
        self._sender = AssignmentSender(self._send, lambda: self.group.members)
        self._agreed = asyncio.Event()
        self._none_moves = asyncio.Event()
        self._event_came = asyncio.Event()  # more than a heartbeat or a tick has come
        self._targets: asyncio.Queue[ev.ComputeTarget] = asyncio.Queue()
        self.assignor_process = AssignorProcess()
        self._behind: Services | None = None
        self._started = asyncio.Event()
        self.gathered = asyncio.Event()  # before that the size of the group is not known
        self._ended = False

    def listen(self, services: Services) -> None:
        """Be found behind the listener; sessions are taken once `serve` runs."""
        self._behind = services
        services.add(self)

    async def serve(self) -> None:
        """Run until the lease is lost (NotCoordinator) or the task is cancelled. `listen` comes first."""
        assert self._behind is not None
        self.live = await self.ledger.settings()
        self.settings = overlaid(self.configured, self.live)
        generation, members = await self.ledger.generation()
        self._leavers = (kept := await self.ledger.scale_downs()).leavers
        self.group = Group(
            self.settings,
            self.tasks,
            await self.ledger.owners(),
            term=self.ledger.term,
            now_ms=monotonic_ms(),
            generation=generation,
            gathering=True,
            former=self.former,
            before=members,
            started_with=self.started_with,
            leavers=kept.leavers,
        )
        self._resume_operations(kept.run)
        self._started.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._gather())
                group.create_task(self._renew())
                group.create_task(self._tick())
                group.create_task(self._write())
                group.create_task(self._keep_generation())
                group.create_task(self._compute())
                group.create_task(self._until_refused())
        except* NotCoordinator as errors:
            log.warning("term %d is over: %s", self.ledger.term, errors.exceptions[0])
        finally:
            await self.close()

    async def _until_refused(self) -> None:
        raise await self._refusals.get()

    async def close(self) -> None:
        """End all sessions, also those that wait for a beginning that does not come. The listener stays."""
        if self._behind is not None:
            self._behind.remove(self)
        self._ended = True
        self._started.set()
        self.gathered.set()
        self._sender.close()
        await asyncio.gather(*(peer.connection.close() for peer in list(self._peers.values())))

    def _resume_operations(self, operations: Sequence[Mapping[str, object]]) -> None:
        for facts in operations:
            self._operations[str(facts["id"])] = facts
            self._remember(facts)
            self.event(resumed(facts, self.wall_ms()))

    async def keep_operation(self, facts: Mapping[str, object]) -> None:
        """Has the log know a scale-down that is about to begin. Under the lock. Raises NotCoordinator."""
        await self._put_operations({**self._operations, str(facts["id"]): facts})
        self._remember(facts)
        self.outcomes.pop(str(facts["id"]), None)

    def _remember(self, facts: Mapping[str, object]) -> None:
        """Its client asks again where the answer is lost, and a scale-down may be over by then."""
        if facts.get("request"):
            self.requested[str(facts["request"])] = facts
            if len(self.requested) > OUTCOMES_KEPT:
                del self.requested[next(iter(self.requested))]

    async def forget_operations(self) -> None:
        """Has the log know that all are about to be taken back. Under the lock. Raises NotCoordinator."""
        await self._put_leavers(taken_back(self._operations.values(), self._leavers))
        await self._put_operations({})

    async def _put_leavers(self, leavers: Mapping[str, str]) -> None:
        if leavers != self._leavers:
            await self._under_lease(self.ledger.put_leavers(leavers))
            self._leavers = leavers

    async def _put_operations(self, operations: dict[str, Mapping[str, object]]) -> None:
        await self._under_lease(self.ledger.put_operations([*operations.values()]))
        self._operations = operations

    async def _under_lease(self, write: Awaitable[None]) -> None:
        """Raises NotCoordinator, which ends the term at once: the loops, whose writes are refused too, may wait for a log that takes none."""
        try:
            await write
        except NotCoordinator as error:
            self._refusals.put_nowait(error)
            raise

    async def _forget_operation(self, operation: str) -> None:
        async with self.operations_lock:  # one that was taken back may have been asked for once more meanwhile
            if operation not in self.group.operations and (facts := self._operations.pop(operation, None)) is not None:
                await self._put_leavers(left_by(facts, self._leavers, self.group.leavers))
                await self.ledger.put_operations([*self._operations.values()])

    # ---- the core

    def event(self, event: ev.Event) -> None:
        """Give the core an event and perform what it wants. Never waits."""
        if not isinstance(event, ev.Heartbeat | ev.Tick):
            self._event_came.set()
        before = self.group.generation
        for effect in self.group.step(event, monotonic_ms()):
            self._perform(effect)
        if self.group.generation != before:
            self._agreed.set()
        if self.group.moves or self.group.recording:
            self._none_moves.clear()
        else:
            self._none_moves.set()
        if self._started.is_set() and not self.group.gathering:
            self.gathered.set()
        if self.settings.check_invariants:
            invariants.check(self.group)

    def _perform(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(session, assignment):
                self._sender.send(session, assignment, self.settings.release_timeout_ms)
            case ev.CloseSession(session, fenced):
                self._sender.forget(session)
                self._send(session, messages.Closed(fenced, "fenced" if fenced else "another session took over"))
            case ev.RecordOwners() | ev.Fence():
                if isinstance(effect, ev.RecordOwners):
                    self._reasons.update(reasons(self.group, effect.records))
                self._writes.put_nowait(effect)
            case ev.ComputeTarget():
                self._targets.put_nowait(effect)
            case ev.OperationEnded(operation, outcome):
                self.outcomes[operation] = outcome
                if len(self.outcomes) > OUTCOMES_KEPT:
                    del self.outcomes[next(iter(self.outcomes))]
                log.info("scale-down %s: %s", operation, outcome)
                self._writes.put_nowait(effect)
            case ev.HandedOver():
                self._handed_over(effect)
            case ev.Announced(text):
                log.info(text)

    def _handed_over(self, move: ev.HandedOver) -> None:
        """Keeps the last hand-overs; one that is published again replaces its facts."""
        key = (move.task, move.epoch)
        known = self.hand_overs.get(key)
        if known is None:
            self.hand_over_count += 1
        self.hand_overs[key] = move
        self.on_hand_over(move, known, self._reasons.get(key, ""))
        if len(self.hand_overs) > HAND_OVERS_KEPT:
            del self.hand_overs[next(iter(self.hand_overs))]
        while len(self._reasons) > HAND_OVERS_KEPT:
            del self._reasons[next(iter(self._reasons))]
        log.info(
            "%s handed over from %s to %s, pause %s, gap %s",
            move.task,
            move.source,
            move.target,
            _ms(move.pause_ms),
            _ms(move.gap_ms),
        )

    def _send(self, session: int, message: messages.Down) -> None:
        peer = self._peers.get(session)
        if peer is not None:
            peer.connection.send(message)

    # ---- loops

    async def _gather(self) -> None:
        """Nothing is planned or counted before those without tasks had the time to come back (docs/decisions/29)."""
        if self.group.gathering:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.gathering_ms / 1000):
                    await self.gathered.wait()
                    return
            self.event(ev.Gathered())
        self.gathered.set()

    async def _renew(self) -> None:
        while True:
            began_ms = monotonic_ms()
            await self.ledger.renew()
            self._renewed_ms = began_ms
            await asyncio.sleep(RENEW_S)

    async def _tick(self) -> None:
        while True:
            self.event(ev.Tick())
            self.rates.look(self.group, monotonic_ms())
            if not is_calm(self.group, monotonic_ms()):
                await asyncio.sleep(TICK_S)
                continue
            self._event_came.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALM_S):
                    await self._event_came.wait()

    async def _write(self) -> None:
        """Owner records, fences and operations, in the order the core asked for them. Owner records that wait are written with
        the first of them: each write is a transaction of the log, and a task has no owner until its own is through."""
        while True:
            effect = self._left_over or await self._writes.get()
            self._left_over = None
            if isinstance(effect, ev.RecordOwners):
                effects = self._with_those_that_wait(effect)
                await self.ledger.record_owners([record for one in effects for record in one.records])
                for one in effects:
                    self.event(ev.OwnersRecorded(one.records))
            elif isinstance(effect, ev.Fence):
                tasks = await self.ledger.fence(effect.transactional_id)
                self.event(ev.Fenced(effect.transactional_id, tasks))
            else:
                await self._forget_operation(effect.operation)

    def _with_those_that_wait(self, first: ev.RecordOwners) -> list[ev.RecordOwners]:
        """Up to the first effect of another kind, which is written next."""
        effects = [first]
        while not self._writes.empty():
            effect = self._writes.get_nowait()
            if not isinstance(effect, ev.RecordOwners):
                self._left_over = effect
                break
            effects.append(effect)
        return effects

    async def _keep_generation(self) -> None:
        """Not every member receives every generation, and those who did may be gone: the log keeps the last one. Writes under
        the lease are made one after the other, and a task has no owner until its record is written: this one waits for those."""
        while True:
            await self._agreed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GENERATION_S):
                    await self._none_moves.wait()
            self._agreed.clear()
            await self.ledger.put_generation(self.group.generation, frozenset(self.group.members.by_name))

    async def _compute(self) -> None:
        """Long placements, off this loop; what is left of them here is in steps of about a millisecond."""
        try:
            while True:
                wanted = await self._targets.get()
                gc.freeze()  # or the collector walks the whole group, 200 ms for 200,000 tasks, because of what is made here
                try:
                    self.event(ev.TargetComputed(wanted.number, await self.assignor_process.assign(wanted.view)))
                finally:
                    gc.unfreeze()
        finally:
            await self.assignor_process.close()

    # ---- behind the listener (services.Service)

    async def is_open(self) -> bool:
        await self._started.wait()
        return not self._ended

    def begin(self, peer: Peer) -> None:
        self._peers[peer.id] = peer

    def receive(self, peer: Peer, message: messages.Up) -> None:
        if isinstance(message, HEARTBEATS):
            decoder = self._decoders.get(peer.id)
            if decoder is None:
                raise ProtocolError("a heartbeat of a peer that has not joined")
            self.event(ev.Heartbeat(peer.id, decoder.decode(message)))
            self._answer(peer)
        elif isinstance(message, messages.Join):
            self._join(peer, message)
        else:
            raise ProtocolError(f"{type(message).__name__} is no message for a coordinator")

    def _answer(self, peer: Peer) -> None:
        """Confirms a heartbeat to a member whose commits the log does not fence. A member that was fenced, or came back over
        another session, gets no confirmation; nor does any from a coordinator that was paused for longer than its lease."""
        if peer.id not in self._statuses:
            return
        self._statuses[peer.id] += 1
        member = self.group.members.of_session(peer.id)
        leads = monotonic_ms() - self._renewed_ms < LEASE_TIMEOUT_MS
        if leads and member is not None and not member.fenced:
            peer.connection.send(messages.Acknowledged(self._statuses[peer.id]))

    def _join(self, peer: Peer, message: messages.Join) -> None:
        """A session is of one member under one transactional id, whatever it sends later."""
        join_request = message.hello
        if message.version != messages.VERSION or message.application != self.application:
            what = f"this is the coordinator of {self.application}, protocol {messages.VERSION}"
            peer.connection.send(messages.Closed(False, what))
            whom = f"{join_request.member} of {message.application}, protocol {message.version}"
            raise ProtocolError(f"{whom}, wanted to join; {what}")
        who = (join_request.member, join_request.writer)
        if self._joined.setdefault(peer.id, who) != who:
            raise ProtocolError(f"a session of {self._joined[peer.id][0]} wanted to join as {join_request.member}")
        decoder = self._decoders.setdefault(peer.id, DeltaDecoder())
        if join_request.guarantee != EXACTLY_ONCE:
            self._statuses.setdefault(peer.id, 0)
        peer.connection.send(messages.Welcome(self.ledger.term, True, self.settings.patience_ms))
        self.event(ev.Joined(peer.id, join_request, decoder.decode(message)))

    def ended(self, peer: Peer) -> None:
        self._peers.pop(peer.id, None)
        self._decoders.pop(peer.id, None)
        self._statuses.pop(peer.id, None)
        self._sender.forget(peer.id)
        if self._joined.pop(peer.id, None) is not None:
            self.event(ev.SessionEnded(peer.id))


def _ms(time_ms: int | None) -> str:
    return "not measured" if time_ms is None else f"{time_ms} ms"
