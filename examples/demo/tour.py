"""The seven steps of the tour. One rule: a step waits for conditions that the group or the log tells, with a deadline.

Everything runs in processes of its own: the producer, the backfill (Spark), the fleet (hosted on Spark), the oracle
(Spark). This process only asks and watches.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from examples.demo import measure
from examples.demo.events import LATEST_HOURS, append_all, events
from examples.demo.killing import kill
from examples.demo.stage import Stage
from examples.flights import app
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import HandOversRequest
from orchestrator.errors import OrchestratorError, RefusedBySafety, TimedOut
from orchestrator.names import counted
from state.log.sqlite import open_sqlite
from workers.connection.credentials import credentials_of
from workers.fleet.client import Client
from workers.journal import read_journals
from workers.prepare import prepare

APP = "examples.flights:app"
ORCHESTRATOR = "orchestrator.cli.main"
T = TypeVar("T")


class Tour(Stage):
    """One run. `run` returns the report."""

    async def run(self) -> dict[str, Any]:
        self.log = await open_sqlite(self.options.log, create=True)
        self.client = Client(self.log, app.id, lambda: credentials_of(app.id, f"sqlite:{self.options.log}"))
        try:
            await self._timed("produce", self.produce())
            await self._timed("backfill", self.backfill())
            await self._timed("start", self.start())
            await self._timed("scale up", self.scale_up())
            await self._timed("kill", kill(self))
            await self._timed("scale down", self.scale_down())
            await self._timed("drain input", self.drain())
            await self._timed("verify", self.verify())
            return await self.report()
        finally:
            await self.client.close()
            await self.log.close()

    async def _timed(self, name: str, step: Awaitable[None]) -> None:
        started = monotonic_s()
        await step
        self.seconds[name] = round(monotonic_s() - started, 1)

    # ---- 1 and 2

    async def produce(self) -> None:
        options = self.options
        self.show.step(1, f"months 1 to {options.history} of 2013 go into the embedded log {options.log}")
        prepared = await prepare(self.log, app)
        self.inputs = [p for task in prepared.tasks() for p in prepared.inputs(task.id)]
        history = await _in_thread(lambda: events(1, options.history))
        await append_all(self.log, history)
        self.show.note(f"{len(history)} records (flights and weather) in {app.partitions} partitions of each topic")
        self.show.note(f"the weather of an hour comes up to {LATEST_HOURS} hours after it")
        last = options.history + options.live
        self.producer = await self.processes.start(
            "producer",
            "examples.demo.producer",
            *("--log", str(options.log), "--first", str(options.history + 1), "--last", str(last)),
            *("--rate", str(options.rate), "--hurry", str(options.folder / "hurry")),
        )
        self.show.note(
            f"a producer goes on with months {options.history + 1} to {last}, {options.rate} records a second"
        )

    async def backfill(self) -> None:
        self.show.step(2, "backfill on Spark: the app's own processors over the history, while the producer goes on")
        options = self.options
        await self.processes.run(
            "backfill",
            ORCHESTRATOR,
            *("backfill", APP, "--log", f"sqlite:{options.log}", "--snapshots", str(options.snapshots), "--json"),
        )
        facts = json.loads(self.processes.last_line("backfill"))
        self.backfilled = facts
        positions = await self.log.positions(app.id, self.inputs)
        seam = {str(p): o for p, o in positions.items()}
        reached = sum(o for p, o in positions.items() if p.topic in ("flights", "weather"))
        self.show.note(
            f"read up to {reached} records at positions P; snapshot {facts.get('snapshot')} in {options.snapshots}"
        )
        self.seam = seam

    # ---- 3

    async def start(self) -> None:
        options = self.options
        place = "Spark" if options.on == "spark" else "processes"
        self.show.step(3, f"{options.instances} instances on {place} ingest the snapshots and go on from P")
        self.fleet = await self.processes.start(
            "fleet",
            ORCHESTRATOR,
            *("run", APP, "--instances", str(options.instances), "--on", options.on),
            *(
                "--log",
                f"sqlite:{options.log}",
                "--state-dir",
                str(options.state),
                "--snapshots",
                str(options.snapshots),
            ),
            *("--standbys", "1", "--disconnect-grace", "300ms", "--heartbeat", "500ms"),
            *("--failpoint", f"commit:{self.failpoint}"),
        )

        async def running() -> bool:
            try:
                status = await self.status()
            except RefusedBySafety:
                return False  # the fleet is still on its way
            return len(status["instances"]) >= options.instances and status["stable"]

        await self.until("the instances to run every task", running, 120)
        sources = measure.sources(read_journals(options.state / app.id))
        self.show.note(f"{len((await self.status())['tasks'])} tasks run; restored from: {measure.listed(sources)}")
        self.check(
            "tasks restored from the snapshot", "some", sources.get("snapshot", 0), sources.get("snapshot", 0) > 0
        )
        await self.processed_more(1000)

    # ---- 4

    async def scale_up(self) -> None:
        count = self.options.instances
        self.show.step(4, f"scale up from {count} to {2 * count}: learners first, then they take over")
        before = await self.status()
        await self._command("scale-up", "scale-up", app.id, "--to", str(2 * count), "--wait")

        async def whole() -> bool:
            status = await self.status()
            return len(status["instances"]) == 2 * count and status["stable"]

        # With graces as short as these a machine that stands still for a moment has an instance fenced, and it comes back.
        await self.until(f"{2 * count} instances that share the tasks", whole, 60)
        after = await self.status()
        moves = await self._collect("scale up", before, after)
        self.show.note(
            f"{counted(len(moves), 'task')} moved, generation {before['generation']} -> {after['generation']}"
        )
        self.check("instances after scale-up", 2 * count, len(after["instances"]), len(after["instances"]) == 2 * count)
        loads = [i["load"] for i in after["instances"]]
        self.check("load is balanced", "within 1", f"{min(loads)} to {max(loads)}", max(loads) - min(loads) <= 1)
        await self.processed_more(1000)

    async def _command(self, name: str, *words: str) -> None:
        await self.processes.run(
            name, ORCHESTRATOR, *words, "--log", f"sqlite:{self.options.log}", "--state-dir", str(self.options.state)
        )

    async def _collect(self, step: str, before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
        """The tasks that changed hands in a step, with their measured gaps."""
        await asyncio.sleep(0)
        old = {t["id"]: t["active"] for t in before["tasks"]}
        moved = {t["id"]: (old[t["id"]], t["active"]) for t in after["tasks"] if old[t["id"]] != t["active"]}

        async def timed() -> bool:
            found = await self.client.ask(HandOversRequest())
            return {row["task"] for row in found} >= set(moved)

        try:
            await self.until("both sides of each hand-over to report their times", timed, 10)
        except TimedOut:
            self.show.note("not every hand-over was timed by both sides")
        times = {row["task"]: row for row in await self.client.ask(HandOversRequest())}
        rows = []
        for task, (source, target) in sorted(moved.items()):
            row = times.get(task, {})
            rows.append(
                {
                    "step": step,
                    "task": task,
                    "from": source,
                    "to": target,
                    "gap_ms": row.get("gap_ms"),
                    "pause_ms": row.get("pause_ms"),
                }
            )
        self.moved |= set(moved)
        self.hand_overs += rows
        return rows

    # ---- 6

    async def scale_down(self) -> None:
        self.show.step(6, "scale-down --to 50% --wait: the leavers hand everything over and shut themselves down")
        before = await self.status()
        await self._command("scale-down", "scale-down", app.id, "--to", "50%", "--wait")
        after = await self.status()
        moves = await self._collect("scale down", before, after)
        self.show.note(self.processes.last_line("scale-down"))
        count = self.options.instances
        self.check("instances after scale-down", count, len(after["instances"]), len(after["instances"]) == count)
        self.check("scale-down moved tasks", "some", len(moves), bool(moves))

    # ---- 7

    async def drain(self) -> None:
        """The producer ends, and everything it wrote is processed. Raises OrchestratorError."""
        self.show.step(7, "verify: first everything that was produced is processed")
        options = self.options
        (options.folder / "hurry").touch()
        self.show.note("the rest of the input follows as fast as it goes")
        live = options.live * 31 * 86_400 / options.rate
        if await asyncio.wait_for(self.producer.wait(), max(600.0, live)) != 0:
            raise OrchestratorError(f"the producer failed: {self.processes.last_line('producer')}")

        async def done() -> bool:
            positions = await self.log.positions(app.id, self.inputs)
            ends = await self.log.ends(self.inputs)
            return all(positions.get(p, 0) >= end for p, end in ends.items())

        await self.until("all input to be processed", done, 120)
        self.last_status = await self.status()
        self.fleet.terminate()
        await self.fleet.wait()
        await self.fleet_ended()

    async def fleet_ended(self) -> None:
        code = self.fleet.returncode
        self.check("the fleet stops in order", 0, code, code == 0)

    async def verify(self) -> None:
        self.show.note("an independent oracle: Spark SQL over the whole input against the live tables, every key")
        options = self.options
        await self.processes.run(
            "oracle", "examples.demo.oracle", "--log", str(options.log), "--out", str(options.folder / "oracle.json")
        )
        found = json.loads((options.folder / "oracle.json").read_text())
        self.checks += found["checks"]
        self.counts, self.delays = found["counts"], found["delays"]
        if not found["checks"]:
            self.check("the oracle ran", "checks", "none", False)

    async def report(self) -> dict[str, Any]:
        options = self.options
        rows = read_journals(options.state / app.id)
        restore = await measure.restore(self.log, options.snapshots, options.folder / "scratch")
        return {
            "ok": all(check["ok"] for check in self.checks),
            "records": self.counts,
            "delays": self.delays,
            "hand_overs": self.hand_overs,
            "longest_silence_of_tasks_that_stayed_ms": measure.longest_pause(rows, self.last_status, self.moved),
            "restore": restore,
            "seconds": self.seconds,
            "backfill": self.backfilled,
            "seed": options.seed,
            "on": options.on,
            "paths": {name: str(path) for name, path in self._paths().items()},
            "checks": self.checks,
        }

    def _paths(self) -> dict[str, Path]:
        folder = self.options.folder
        return {
            "log": self.options.log,
            "snapshots and outputs of the backfill": self.options.snapshots,
            "stores": self.options.state,
            "report": folder / "report.json",
            "what the processes said": folder / "output",
        }


async def _in_thread(work: Callable[[], T]) -> T:
    """Run in a thread that is not waited for at the end: Ctrl-C must not wait for a file to be read."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T) -> None:
        if not done.done():
            done.set_result(result)

    def fail(error: BaseException) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            _deliver(loop, fail, error)
        else:
            _deliver(loop, finish, result)

    threading.Thread(target=run, daemon=True).start()
    return await done


def _deliver(loop: asyncio.AbstractEventLoop, call: Callable[[Any], None], value: object) -> None:
    with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
        loop.call_soon_threadsafe(call, value)
