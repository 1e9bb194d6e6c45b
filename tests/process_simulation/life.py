"""One life: a fleet, its input, the faults of its plan, and the judges.

One rule: the controller stands outside of every process. It looks at the log and at the processes as an operator could,
makes the faults happen at their times, and ends the life when all input is processed or the time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import logging
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from pipeline.values.partitioner import partition_of
from state.errors import Fenced, LeaseLost
from state.history import HISTORY, Beginning
from state.log.memory import MemoryLog
from state.log.protocol import DELETE_RETENTION_MS, NewRecord, Partition, TopicSpec
from tests.process_simulation import faults, judges
from tests.process_simulation.apps import ALL, ASYNC, AT_LEAST_ONCE, RESTORING, Expected, Payment, expected, policy
from tests.process_simulation.blast import LOG_TIMED_OUT, Blast
from tests.process_simulation.chance import Order, stream
from tests.process_simulation.disk import Disk
from tests.process_simulation.fates import FATES_OF_LIFE, HANGS
from tests.process_simulation.host import start_fleet
from tests.process_simulation.judges import Broken, Receipts
from tests.process_simulation.loop import Stuck, VirtualLoop
from tests.process_simulation.operator import Operator, left_out_by_policy
from tests.process_simulation.plan import RETENTION_MS, Plan
from tests.process_simulation.process import DEAD, RUNNING, STOPPED, Process, current
from tests.process_simulation.snapshots import Snapshots
from tests.process_simulation.weather import LogClient, Weather
from workers.instance import upkeep
from workers.spec import REPORTED, InstanceSpec
from workers.worker import upkeep as worker_upkeep
from workers.worker import worker

KEYS = 23
LOOK_S = 0.2
MEMBERS_S = 20.0
ORPHAN_S, ZOMBIE_S, RESTART_S = 20.0, 3.0, 3.0
GOES_ON_S = 1.5  # what waited for the log is tried again within a second
UPKEEP_S = 2.0  # the worker's and the coordinator's, which no life is long enough for
REST_S, MOVED_S = 60.0, 15.0  # so long after the last fault everything must be processed, or go on being processed:
REST_MAX_S = 240.0  # a careful worker takes one slow call after the other
STOP_S = 60.0
WALL_MS = 1_700_000_000_000


class Life:
    """See the module text. `live` raises Broken."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        only = None if plan.only is None else dict(plan.only)
        self.loop = VirtualLoop(plan.seed, Order(plan.seed, plan.order_rate, only))
        self.loop.network.delay_max = plan.net_delay
        self.app = ALL[plan.application]
        self.partitions = self.app.partitions
        restores = plan.application in RESTORING
        self.log = MemoryLog(
            clock_ms=lambda: self.wall_ms(""),
            delete_retention_ms=RETENTION_MS if restores else DELETE_RETENTION_MS,
        )
        self.log._waiting = _Ordered()  # type: ignore[assignment]
        self.weather = Weather(stream(plan.seed, "log"), plan.log_delay)
        self.disk = Disk(stream(plan.seed, "disk"), self.breaks)
        self.chance = stream(plan.seed, "faults")
        self.receipts = Receipts(plan.application, repeats=plan.application in AT_LEAST_ONCE)
        self.processes: list[Process] = []
        self.jumps: dict[str, int] = {}
        self.sent: list[tuple[str, Payment]] = []
        self.broken: str | None = None
        self.stopping = False
        self.asked = False  # the fleet, or an instance, to stop
        self._refusals: dict[tuple[str, str], float] = {}
        self.until = 0.0  # faults last until then
        self._stderr = io.StringIO()
        self.blast = Blast(self)
        self.operator = Operator(self)
        self._unwound: dict[int, asyncio.Task[Any]] = {}
        self.left_out: set[int] = set()  # by the operator
        self.removed: set[int] = set()  # by retention, whether they were processed before or not
        self.restarts = 0  # of the fleet, and of instances
        self.quiet = 0.0  # when the last fault of the plan is over
        FATES_OF_LIFE.begin(plan.troubles)
        self.receipts.may_be_left_out |= left_out_by_policy(self)
        self.snapshots = Snapshots(self, Path(tempfile.mkdtemp(prefix="snapshots"))) if restores else None
        self._ids = stream(plan.seed, "ids")
        self._nonces = stream(plan.seed, "nonces")
        self.base = InstanceSpec(
            app=f"tests.process_simulation.apps:{_attribute(plan.application)}",
            application=plan.application,
            instance="",
            log="memory:",
            state_dir="/state",
            workers=plan.workers,
            started_with=plan.instances,
            settings=plan.settings,
            commit_ms=plan.commit_ms,
            on_halt=plan.on_halt,
            on_stop=plan.on_stop,
            log_timeout_ms=plan.log_timeout_ms,
            max_call_ms=plan.max_call_ms,
            snapshots=str(self.snapshots.root) if self.snapshots is not None else "",
        )

    # ---- what processes ask for

    def new_id(self) -> str:
        return f"{self._ids.getrandbits(32):08x}"

    def credentials(self) -> Credentials:
        """Everybody's; nonces are drawn, as all else that is random."""
        secret = Secret(Right.JOIN, b"simulated" + bytes(KEY_BYTES - 9))
        return Credentials(self.plan.application, secret, new_nonce=lambda: self._nonces.randbytes(KEY_BYTES))

    def wall_ms(self, instance: str) -> int:
        return WALL_MS + int(self.loop.time() * 1000) + self.jumps.get(instance, 0)

    def log_client(self) -> Any:
        return LogClient(self.loop, self.log, self.weather, self)

    def committed(self, process: Process, parts: Any, ends: dict[Partition, int]) -> None:
        wrong = self.receipts.committed(parts, ends)
        if wrong is not None:
            self.breaks(f"{wrong} (a commit of {process.name})")

    def written(self, process: Process, parts: Any, ends: dict[Partition, int]) -> None:
        """The records of a commit at least once; its positions follow, or do not."""
        if (wrong := self.receipts.written(parts, ends)) is not None:
            self.breaks(f"{wrong} (a commit of {process.name})")

    def positioned(self, process: Process, parts: Any) -> None:
        if (wrong := self.receipts.positioned(parts)) is not None:
            self.breaks(f"{wrong} (a commit of {process.name})")

    def answered(self, process: Process, name: str, who: str, error: Exception) -> None:
        """Judges who goes on after a fence (at once) or after the end of a term (with what was under way, while the process was
        not stopped)."""
        if isinstance(error, Fenced | LeaseLost):
            first = self._refusals.setdefault((process.name, who), self.loop.time())
            begun, limit_s = (first, 0.0) if name == "commit" else (max(first, process.since), GOES_ON_S)
            if self.loop.time() - begun > limit_s:
                self.breaks(f"fence: {process.name} goes on with {name} as {who} after {error}")

    def not_committed(self, process: Process, parts: Any, error: Exception | None) -> None:
        self.blast.not_committed(process, parts, error)

    def cannot_be_read(self, process: Process, error: Any) -> None:
        self.blast.cannot_be_read(process, error)

    @property
    def leaves(self) -> bool:
        """Whether an instance may have been asked to leave by the coordinator."""
        return self.plan.on_stop == "leave" or any(fault.kind == "leave" for fault in self.plan.faults)

    def look_at_stores(self) -> None:
        """Called when a process has ended, however it did."""
        wrong = judges.stores(self.disk, f"{self.plan.application}-balances-changelog", self.receipts.history)
        if wrong is not None:
            self.breaks(wrong)

    def breaks(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
            self.loop.tell(f"BROKEN {why}")
            self.loop.stop()

    # ---- living

    def live(self) -> None:
        """Raises Broken."""
        loop = self.loop
        asyncio.set_event_loop(loop)
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        collecting = gc.isenabled()
        gc.disable()
        try:
            given_up = worker.Worker.given_up

            def judged(one: Any, run: Any) -> None:
                if one.runs.get(run.id) is run:
                    self.blast.given_up(current(), run.scope)
                given_up(one, run)

            with (
                contextlib.redirect_stderr(self._stderr),
                patch.object(worker_upkeep, "CLEAN_UP_S", UPKEEP_S),
                patch.object(upkeep, "EVERY_S", UPKEEP_S),
                patch.object(worker.Worker, "given_up", judged),
            ):
                control = loop.create_task(self._control())
                control.add_done_callback(lambda _: loop.stop())
                try:
                    loop.run_forever()
                except Stuck as error:
                    self.breaks(f"rest: {error}")
                if self.broken is None:
                    control.result()
        finally:
            logging.disable(level)
            if self.snapshots is not None:
                self.snapshots.remove()
            with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of what is unwound in the middle
                self._clear()
            asyncio.set_event_loop(None)
            if collecting:
                gc.enable()
        if self.broken is not None:
            raise Broken(self.broken)

    def _clear(self) -> None:
        """Unwind what dead processes and a life that broke have left in the middle of things."""
        for process in self.processes:
            process.state = DEAD
        left: list[asyncio.Task[Any]] = [*asyncio.all_tasks(self.loop), *(t for p in self.processes for t in p.tasks)]
        while left:
            for task in left:
                self._unwind(task)
            left = [task for task in asyncio.all_tasks(self.loop) if id(task) not in self._unwound]  # made meanwhile
        for process in self.processes:
            process.tasks.clear()
        self.loop.close()

    def _unwind(self, task: asyncio.Task[Any]) -> None:
        self._unwound[id(task)] = task
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine: Any = task.get_coro()
        for _ in range(20):
            try:
                coroutine.throw(GeneratorExit())
            except BaseException:  # noqa: BLE001 - whatever ends it will do
                break

    async def _control(self) -> None:
        await self.log.create_topic(TopicSpec("payments", self.partitions))
        if self.snapshots is not None and self.plan.base:
            await self.snapshots.begin_with_a_base()
        self._produce()
        self.fleet_process, self.fleet = start_fleet(self, self.plan.instances)
        for fault in self.plan.faults:
            self.loop.call_later(fault.at_ms / 1000, faults.begin, self, fault)
        last = max((f.at_ms + f.for_ms for f in self.plan.faults), default=0)
        quiet = self.loop.time() + max(last, self.plan.produce_ms) / 1000
        self.until = self.quiet = max(self.until, quiet)
        done, moved = 0, 0.0
        while not (self.loop.time() >= self.until and await self._at_rest()):
            await asyncio.sleep(LOOK_S)
            self._look_after()
            await self.operator.look()
            if (processed := await self.processed()) > done:
                done, moved = processed, self.loop.time()
            over_s = self.loop.time() - self.until
            if over_s > REST_S and (over_s > REST_MAX_S or self.loop.time() - moved > MOVED_S):
                return self.breaks(f"rest: {await self._what_waits()}")
        await self._coordinated()
        self._started_again()
        await self._all_are_members()
        await self._stop()
        if self.broken is None:
            wrong = judges.final(
                *(self.log, self.plan.application, self.app.partitions, self._expected(), self.receipts.repeated()),
                self.before,
            )
            wrong = wrong or self._doubled_without_a_fault() or self._not_left_out() or self.blast.at_the_end()
            if wrong is not None:
                self.breaks(wrong)
        if self.broken is None and self.loop.unforeseen:
            self.breaks(f"unforeseen: {self.loop.unforeseen[0]!r}")

    def _look_after(self) -> None:
        """Starts the fleet again where it was stopped; judges who lives on and should not."""
        now, session = self.loop.time(), self.plan.settings.session_timeout_ms / 1000
        for process in self.processes:
            parent = process.parent
            if parent is None or process.state == DEAD or "." not in process.name:
                continue
            if parent.state == DEAD and process.state == RUNNING and now - max(parent.since, process.since) > ORPHAN_S:
                self.breaks(f"orphan: {process.name} runs {ORPHAN_S:g} s after its instance died")
            since = max(parent.since, process.since)
            if parent.state == RUNNING and process.state == STOPPED and now - since > session + ZOMBIE_S:
                self.breaks(f"zombie: {process.name} was stopped for a session, and its instance let it be")
        if not self.stopping and self.fleet_process.state == DEAD and self._may_have_ended(self.fleet_process.code):
            self.loop.tell(f"the fleet has ended with {self.fleet_process.code}; it is started again")
            self.restarts += 1
            self.until = max(self.until, now + 3.0)
            self.fleet_process, self.fleet = start_fleet(self, self.plan.instances)
        elif not self.stopping and self.fleet_process.state == DEAD and self.fleet_process.code != 0:
            self.breaks(f"fleet: it ended with {self.fleet_process.code} before it was stopped ({self._why()})")
        elif not self.stopping and self.fleet_process.state == DEAD and not self.asked:
            self.breaks(f"fleet: it ended with 0 and nobody asked it to ({self._why()})")
        elif not self.stopping and self.fleet_process.state == DEAD:
            self.asked = False
            self.restarts += 1
            self.fleet_process, self.fleet = start_fleet(self, self.plan.instances)

    def _may_have_ended(self, code: int | None) -> bool:
        """Whether what befell the life allows that its fleet ended with this code."""
        if code == LOG_TIMED_OUT:
            return any(p.code == LOG_TIMED_OUT for p in self.fleet_process.children)  # each of which was judged
        return code == 1 and self.operator.mends_what_ended_the_fleet()

    def _why(self) -> str:
        """What was unforeseen, or the last line on standard error."""
        if self.loop.unforeseen:
            return repr(self.loop.unforeseen[0])
        lines = self._stderr.getvalue().strip().splitlines()
        return lines[-1] if lines else "nothing was said"

    def _expected(self) -> Expected:
        """A record that a policy or an operator may leave out was, where it is not among the outputs."""
        left_out = {n for n in self.receipts.may_be_left_out if not self.receipts.out[n]}
        return expected(self.plan.application, self.sent, left_out, self.receipts.repeated(), self.before)

    @property
    def before(self) -> dict[str, int]:
        """Balances that a backfill has left."""
        return self.snapshots.before if self.snapshots is not None else {}

    def partition_of(self, key: bytes) -> int:
        return partition_of(key, self.partitions)

    def beginnings(self) -> list[Beginning]:
        """The log's history, oldest first."""
        found = self.log._metadata.get((self.plan.application, HISTORY.name), {})
        return [msgspec.json.decode(found[key], type=Beginning) for key in sorted(found)]

    def _not_left_out(self) -> str | None:
        """Records that must have been left out and were put out, or that a policy for dead letters left out silently."""
        hang = {t.number for t in self.plan.troubles if t.fate == HANGS}
        both = sorted(n for n in self.receipts.may_be_left_out - hang - self.removed if self.receipts.out[n])
        if both:
            return f"left out: {both} were put out, and were to be left out"
        silent = [
            n
            for n in self.receipts.may_be_left_out - self.removed
            if not self.receipts.out[n] and not self.receipts.letters[n]
        ]
        if policy(self.plan.application) == "letters" and silent:
            return f"letters: {sorted(silent)} are neither put out nor among the dead letters"
        return None

    def _doubled_without_a_fault(self) -> str | None:
        again = sorted(self.receipts.repeated())
        return f"doubled: {again}, and nothing befell the life" if again and not self.plan.faults else None

    # ---- the input

    def _produce(self) -> None:
        chance = stream(self.plan.seed, "input")
        topic = self.app.topics["payments"]
        pieces = max(1, self.plan.records // 5)
        for piece in range(pieces):
            numbers = range(piece * self.plan.records // pieces, (piece + 1) * self.plan.records // pieces)
            rows = [
                (
                    f"k{chance.randrange(KEYS)}",
                    Payment(n, chance.randrange(-3, 9), f"s{chance.randrange(5)}", self._cost_ms(n)),
                )
                for n in numbers
            ]
            at = self.plan.produce_ms * piece / pieces / 1000
            self.loop.call_later(at, self._append, topic, rows)

    def _cost_ms(self, number: int) -> int:
        hangs = self.plan.application in ASYNC and number == self.plan.records // 2
        return self.plan.cost_ms + (self.plan.hang_ms if hangs else 0)

    def _append(self, topic: Any, rows: list[tuple[str, Payment]]) -> None:
        records: dict[Partition, list[NewRecord]] = {}
        ids: dict[Partition, list[int]] = {}
        for key, payment in rows:
            raw = topic.key_codec.encode(key)
            partition = Partition("payments", partition_of(raw, self.partitions))
            record = NewRecord(raw, topic.value_codec.encode(payment), WALL_MS + payment.id)
            records.setdefault(partition, []).append(record)
            ids.setdefault(partition, []).append(payment.id)
        self.sent += rows
        for partition, listed in records.items():
            base = self.log.part(partition).end
            self.receipts.produced(partition, [(base + i, number) for i, number in enumerate(ids[partition])])
            _done(self.log.append({partition: listed}))

    async def grow(self, topic: str, by: int) -> None:
        """More partitions for a topic, if there is one yet."""
        found = (await self.log.topics([topic])).get(topic)
        if found is not None:
            grown = await self.log.grow_topic(topic, min(8, found.partitions + by))
            self.loop.tell(f"{topic} has {grown.partitions} partitions")
            if topic == "payments":
                self.partitions = grown.partitions

    async def retain(self, number: int) -> None:
        partition = Partition("payments", number)
        ends = await self.log.ends([partition])
        position = (await self.log.positions(self.plan.application, [partition])).get(partition, 0)
        self.log.part(partition).trim((position + ends[partition] + 1) // 2)
        gone = {n for at, n in self.receipts.sent.get(partition, ()) if at < self.log.part(partition).start}
        self.removed |= gone
        self.receipts.may_be_left_out |= gone
        self.loop.tell(f"{partition} begins at {self.log.part(partition).start} now")

    # ---- rest and the end

    async def inputs(self) -> dict[Partition, int]:
        """The ends of what the application reads."""
        topics = await self.log.topics(["payments", f"{self.plan.application}-by-shop-repartition"])
        names = list(topics)
        return await self.log.ends([Partition(n, i) for n in names for i in range(topics[n].partitions)])

    async def _at_rest(self) -> bool:
        ends = await self.inputs()
        positions = await self.log.positions(self.plan.application, list(ends))
        done = all(positions.get(partition, 0) >= end for partition, end in ends.items())
        return done and not await self.operator.look()

    async def processed(self) -> int:
        """How far the inputs are, in all."""
        return sum((await self.log.positions(self.plan.application, list(await self.inputs()))).values())

    async def _what_waits(self) -> str:
        ends = await self.inputs()
        positions = await self.log.positions(self.plan.application, list(ends))
        behind = {str(p): f"{positions.get(p, 0)} of {end}" for p, end in ends.items() if positions.get(p, 0) < end}
        alive = [p.name for p in self.processes if p.state != DEAD]
        return f"{behind} not processed; alive: {alive}"

    async def _coordinated(self) -> None:
        """Somebody must hold the lease and renew it."""
        before = await self.log.lease(self.plan.application)
        deadline = self.loop.time() + 15.0
        while await self.log.lease(self.plan.application) == before:
            if self.loop.time() > deadline:
                return self.breaks(f"coordinator: nobody renews the lease of {before.holder if before else 'nobody'}")
            await asyncio.sleep(LOOK_S)
            self._look_after()

    async def _all_are_members(self) -> None:
        """Every instance that runs must be in the group, with all of its workers, and nobody else."""
        deadline = self.loop.time() + MEMBERS_S
        while self.broken is None:
            status = await faults.ask(self, StatusRequest())
            runs = Counter(p.name.partition(".")[0] for p in self.processes if "." in p.name and p.state == RUNNING)
            told = {row["id"]: row["workers"] for row in (status or {}).get("instances", ())}
            if told == dict(runs):
                return
            if self.loop.time() > deadline:
                return self.breaks(f"members: {dict(runs)} run, and the group has {told}")
            await asyncio.sleep(LOOK_S)
            self._look_after()

    def _started_again(self) -> None:
        """An instance that was killed must be there again."""
        last = {p.name: p for p in self.processes if p.parent is self.fleet_process}
        for name, process in last.items():
            if process.state == DEAD and process.code != 0 and self.loop.time() - process.since > RESTART_S:
                self.breaks(f"restart: {name} ended with {process.code} and was not started again")

    async def _stop(self) -> None:
        self.stopping = True
        await asyncio.sleep(
            LOOK_S
        )  # a signal that is on its way ends its workers before, at once if it is a second one
        workers = [p for p in self.processes if "." in p.name and p.state == RUNNING and not p.parent_is_dead]
        self.stop_fleet()
        deadline = self.loop.time() + STOP_S
        while any(p.state != DEAD for p in self.processes):
            if self.loop.time() > deadline:
                alive = [p.name for p in self.processes if p.state != DEAD]
                return self.breaks(f"stop: {alive} go on after {STOP_S:g} s")
            await asyncio.sleep(LOOK_S)
        killed = [f"{p.name} ({p.code})" for p in workers if p.code != REPORTED]
        if killed:
            self.breaks(f"stop: workers did not end in order: {killed} ({self._why()})")
        code = self.fleet_process.code  # it may have been about to end for the log when it was stopped
        if code and not (code == LOG_TIMED_OUT and self._may_have_ended(code)):
            self.breaks(f"stop: the fleet ended with {self.fleet_process.code} ({self._why()})")

    def stop_fleet(self) -> None:
        self.stopping = True
        if self.fleet_process.state != DEAD:
            self.loop.call_soon(self.fleet.stop, context=self.fleet_process.context)


class _Ordered(dict[Any, None]):
    """A set that keeps its order: the order of waking must not depend on addresses."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


def _attribute(application: str) -> str:
    return application


def _done(call: Any) -> None:
    with contextlib.suppress(StopIteration):
        call.send(None)
