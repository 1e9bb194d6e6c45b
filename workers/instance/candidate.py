"""A candidate for coordinator: watches the lease, takes it when its holder is gone, serves until deposed.

One rule: the instance's listener is open before the lease names it, and nothing is decided before the owner records are
read. A port that refuses belongs to a process that is gone: its beat is not waited for (docs/decisions/51). An instance that does
not reach itself where it would have others look for it takes no lease: none of the group's workers would, and the group would
have no coordinator for as long as it renews.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator.admin import HANDLERS
from orchestrator.coordinator.election import Election, Seen
from orchestrator.coordinator.services import Services
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import ListenerWatch, connect
from orchestrator.errors import OrchestratorError
from orchestrator.group.events import HandedOver
from orchestrator.model import FIRST_DELAY_MS, Task
from state import history
from state.errors import LogReplaced, LogTimedOut, StateError
from state.log.group_store import Lease
from state.log.protocol import GroupLog
from workers.connection.contact import patient
from workers.connection.listening import reached_at
from workers.instance.ledger import LogLedger, give_back, is_given_back
from workers.instance.silent_writers import SilentWriters
from workers.instance.upkeep import LogUpkeep
from workers.log.logs import log_path
from workers.metrics.families import HAND_OVER_GAP, HAND_OVER_PAUSE, HAND_OVERS, IS_COORDINATOR, OF_INSTANCE, TERM
from workers.metrics.measures import Measures
from workers.prepare import Prepared
from workers.spec import InstanceSpec
from workers.surroundings import REAL, Surroundings
from workers.worker.growth import seen_again

log = logging.getLogger("orchestrator.candidate")
LOOK_S, GIVE_BACK_S = 0.3, 1.0
REACH_S, AGAIN_S, REPORTS_S = 3.0, 5.0, 10.0


class Reports:
    """Of why there is no coordinator from here: looks follow each other several times a second, and a reason may have an id of its own
    each time."""

    def __init__(self) -> None:
        self._last, self._again_s = "", 0.0

    def is_due(self, reason: str, now_s: float) -> bool:
        """Whether a line is written: one for each reason, and no more than one in `REPORTS_S`."""
        if reason == self._last or now_s < self._again_s:
            return False
        self._last, self._again_s = reason, now_s + REPORTS_S
        return True


class Candidate:
    """Runs in each instance's parent process."""

    def __init__(
        self,
        log_: GroupLog,
        prepared: Prepared,
        spec: InstanceSpec,
        services: Services,
        surroundings: Surroundings = REAL,
        measures: Measures | None = None,
        note: Callable[..., None] = lambda what, **facts: None,
        given_up: Callable[[LogTimedOut], None] = lambda error: None,
    ) -> None:
        self._log = log_
        self._prepared = prepared
        self._app = prepared.app
        self._spec = spec
        self._services = services
        self._surroundings = surroundings
        self._election = Election()
        self._listener = ListenerWatch()  # of the coordinator
        self._refused: dict[str, int] = {}  # the terms in which coordinators were taken for gone, by address
        self._given_up = given_up  # is called where the log of all can be written by no process
        self._note = note  # writes a line into the journal of the instance
        self._measures = measures or Measures(OF_INSTANCE)
        self._unreached, self._tried_s = "", 0.0  # why the advertised address is of no use, and when that was seen
        self._is_over = False

    def over(self) -> None:
        """It is cancelled next. A task group whose loops fail in that moment raises their errors in place of the cancellation
        (Python before 3.13): it would go on looking for ever."""
        self._is_over = True

    async def run(self) -> None:
        """Until it is over and cancelled."""
        try:
            await self._look_for_ever()
        finally:
            self._listener.close()

    async def _look_for_ever(self) -> None:
        reports = Reports()
        while True:
            try:
                lease = await self._log.lease(self._app.id)
                self._measures.put(TERM, 0 if lease is None else lease.term)
                seen = None if lease is None else Seen(lease.term, lease.beat)
                if self._election.look(seen, monotonic_ms()) or await is_given_back(self._log, lease):
                    await self._serve(lease, "")
                elif lease is not None and await self._is_gone(lease):
                    log.info("connections to %s are refused, where %s was the coordinator", lease.address, lease.holder)
                    # This very instance is not gone: its own last term ended, and its workers come back.
                    await self._serve(lease, "" if lease.holder == self._spec.instance else lease.holder)
            except* StateError as errors:  # a coordinator's loops end together, with a group of errors
                self._listener.close()  # it is not looked at meanwhile, and its listener ends those that are silent for long
                reason = str(errors.exceptions[0])
                if reports.is_due(reason, asyncio.get_running_loop().time()):
                    gone = isinstance(errors.exceptions[0], LogReplaced)  # the workers end, and with them the instance
                    log.log(logging.INFO if gone else logging.WARNING, "no coordinator from here for now: %s", reason)
                if isinstance(first := errors.exceptions[0], LogTimedOut) and log_path(self._spec.log) is not None:
                    self._given_up(first)
            except* Exception:
                log.exception("an internal error ended the coordinator here; a candidate takes over")
            if self._is_over:
                return
            await asyncio.sleep(LOOK_S)

    async def _is_gone(self, lease: Lease) -> bool:
        """Whether the process of the coordinator has ended, as this host says. One that takes the lease again, and is refused as before,
        lives: it listens on another machine, for that one alone. Two of these took the lease from each other for ever."""
        if not await self._listener.is_refused(lease.address):
            self._refused.pop(lease.address, None)
            return False
        if self._refused.setdefault(lease.address, lease.term) == lease.term:
            return True
        if self._refused[lease.address] > 0:
            self._refused[lease.address] = 0  # logged once
            log.warning(
                "no instance answers at %s, where %s coordinates '%s': it listens for its own machine alone, and workers here get no "
                "task; start the instances there with --listen HOST:PORT (docs/security.md, Other machines)",
                lease.address,
                lease.holder,
                self._app.id,
            )
        return False

    async def _give_back(self, lease: Lease) -> None:
        """After the coordinator's last write: the log's writes are made one after the other. A log that is away is not
        waited for: neither the end of this process nor its next term is to wait for a word that only saves time."""
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await give_back(self._log, lease)
        except (StateError, TimeoutError) as error:  # the others will notice that the beat stands still
            reason = error if isinstance(error, StateError) else f"the log did not take it within {GIVE_BACK_S:g} s"
            log.info("the lease of term %d is not given back: %s", lease.term, reason)

    async def _is_reached(self, address: str) -> bool:
        """Whether this instance answers at the address that the others would be given. With what it began with, as its workers: what lies
        on disk may be gone or another by now."""
        now_s = asyncio.get_running_loop().time()
        if self._unreached and now_s - self._tried_s < AGAIN_S:
            return False
        try:
            connection = await connect(address, self._services.credentials, timeout_s=REACH_S)
        except OrchestratorError as error:
            if str(error) != self._unreached:
                log.warning(
                    "no coordinator from here: this instance does not reach itself at its --advertise: %s", error
                )
            self._unreached, self._tried_s = str(error), asyncio.get_running_loop().time()
            return False
        await connection.close()
        self._unreached = ""
        return True

    async def _serve(self, seen: Lease | None, former: str) -> None:
        """`former`: the instance whose process was the coordinator and is gone, and its workers with it."""
        address = reached_at(self._spec.advertise, self._services.listener.address)
        if self._spec.advertise and not await self._is_reached(address):
            return
        settings = patient(self._spec.settings, self._app.guarantee, self._log)
        settings = replace(settings, initial_delay_ms=max(FIRST_DELAY_MS, settings.initial_delay_ms))
        # Not prepared again: that refuses a topic with state that was grown, and tasks that run need a coordinator.
        tasks: list[Task] = seen_again(self._prepared, await self._log.topics(list(self._prepared.topics))).tasks()
        term = 1 if seen is None else seen.term + 1
        ledger = LogLedger(self._log, Lease(self._app.id, term, self._spec.instance, "", 0))
        coordinator = Coordinator(
            self._app.id,
            settings,
            ledger,
            tasks,
            HANDLERS,
            host=self._spec.instance,
            former=former,
            started_with=self._spec.started_with * self._spec.workers
            if settings.initial_delay_ms == FIRST_DELAY_MS
            else 0,
            wall_ms=self._surroundings.wall_ms,
            on_hand_over=self._handed_over,
        )
        coordinator.listen(self._services)
        taken: Lease | None = None
        try:
            taken = await self._log.acquire(self._app.id, self._spec.instance, address, seen)
            if taken is None:
                return
            log.info("%s is the coordinator of %s, term %d", self._spec.instance, self._app.id, taken.term)
            coordinator.ledger = ledger = LogLedger(self._log, taken)
            self._measures.put(TERM, taken.term)
            self._measures.put(IS_COORDINATOR, 1)
            changelogs = [
                self._prepared.changelog(task.id, table)
                for task in tasks
                for table in self._prepared.subtopology(task.id).tables
            ]
            await history.begin(self._log, taken, changelogs, self._surroundings.new_id())
            rounds = LogUpkeep(self._log, self._app.id, self._surroundings.wall_ms).run()
            beside = [asyncio.create_task(rounds, name="upkeep of the log")]
            if self._log.leaves_open:
                looks = SilentWriters(ledger, lambda: coordinator.group).run()
                beside.append(asyncio.create_task(looks, name="transactions of silent workers"))
            try:
                await coordinator.serve()
            finally:
                for one in beside:
                    one.cancel()
        finally:
            self._measures.put(IS_COORDINATOR, 0)
            await coordinator.close()
            if taken is not None:
                await self._give_back(taken)

    def _handed_over(self, move: HandedOver, known: HandedOver | None, why: str) -> None:
        """Counts a hand-over once, and its times when they are known first; the journal has a line each time."""
        facts = {
            "log_id": self._log.log_id,
            "from": move.source,
            "to": move.target,
            "gap_ms": move.gap_ms,
            "pause_ms": move.pause_ms,
        }
        self._note("handed over", task=str(move.task), epoch=move.epoch, why=why, **facts)
        if known is None:
            self._measures.add(HAND_OVERS, 1)
        for family, now_ms, before_ms in (
            (HAND_OVER_GAP, move.gap_ms, None if known is None else known.gap_ms),
            (HAND_OVER_PAUSE, move.pause_ms, None if known is None else known.pause_ms),
        ):
            if now_ms is not None and before_ms is None:
                self._measures.observe(family, now_ms / 1000)
