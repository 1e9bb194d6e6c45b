"""How processes start here: instances for the fleet, workers for their instance, each with surroundings in memory.

One rule: the mains are the product's (`Instance.run`, `run_worker`, `Fleet.run`); only what starts them is simulated.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.error_report import report
from orchestrator.errors import OrchestratorError
from pipeline.errors import PipelineError
from state.errors import StateError
from state.log.protocol import GroupLog
from tests.process_simulation.disk import NoteFile
from tests.process_simulation.process import DEAD, STOPPED, Process, ProcessGone, Thread, current
from workers.calls.blame import CallNote
from workers.connection.asking import Place
from workers.connection.thread_line import ThreadLine, ThreadUplink
from workers.connection.uplink import Caller
from workers.fleet.fleet import Fleet
from workers.instance.instance import Instance
from workers.spec import BOUNCE, InstanceSpec, WorkerSpec
from workers.surroundings import Surroundings
from workers.worker.worker_main import run_worker

if TYPE_CHECKING:
    from tests.process_simulation.life import Life

START_S = 0.05  # what a process takes to begin


class MemoryJournal:
    """Lines of an instance's journal go into the trace of the life."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def write(self, what: str, **facts: Any) -> None:
        told = " ".join(f"{name}={value}" for name, value in facts.items() if name not in ("pid", "attempt"))
        self._life.loop.tell(f"{current().name}: {what} {told}")


class MemoryLine(ThreadLine):
    """A worker's connections, in a simulated thread."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._thread = Thread(process)

    def close(self) -> None:
        """The thread has nothing left to do."""

    def soon(self, work: Callable[..., Any], *args: Any) -> None:
        self._process.loop.hand_over(self._process, lambda: work(*args), self._thread.context)

    async def open(self, place: Place, caller: Caller) -> ThreadUplink:
        return await super().open(place, replace(caller, watch=self._process.watching(caller.watch)))

    async def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._process.state == DEAD:  # what is left of it is unwound: nobody would run the work
            work.close()
            raise ProcessGone(self._process.name)
        return await self._process.loop.create_task(work, context=self._thread.context)


class Child:
    """See `workers.surroundings.WorkerProcess`, and `workers.fleet.hosts.Handle`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def returncode(self) -> int | None:
        return self.process.code

    def send(self, request: bytes) -> None:
        self.process.requests.append(request)
        self.process.write_line(request)

    def is_stopped(self) -> bool:
        return self.process.state == STOPPED

    async def wait(self) -> int:
        return await self.process.wait()

    def stop(self) -> None:
        self.process.signal(signal.SIGTERM)

    def bounce(self) -> None:
        self.process.asked_to_end()
        self.send(BOUNCE.strip())

    def kill(self) -> None:
        self.process.is_killed_by_parent = self.process.state != DEAD
        self.process.signal(signal.SIGKILL)


class Host:
    """See `workers.fleet.hosts.Host`."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def start(self, spec: InstanceSpec) -> Child:
        await asyncio.sleep(START_S)
        life = self._life
        process = Process(life.loop, spec.instance, current())
        life.processes.append(process)
        process.at_end.append(lambda: life.blast.ended(process))
        process.start(_instance(spec, surroundings(life, process, spec.instance)))
        return Child(process)


async def _instance(spec: InstanceSpec, around: Surroundings) -> int:
    """What `run_instance` does around its loop."""
    try:
        return await Instance(spec, leash=0, surroundings=around).run()
    except (OrchestratorError, StateError, PipelineError) as error:
        return report(error)


def surroundings(life: Life, process: Process, instance: str) -> Surroundings:
    def wall_ms() -> int:
        return life.wall_ms(instance)

    async def open_log(spec: InstanceSpec) -> GroupLog:
        current()
        return life.log_client()

    def open_store(path: Path, stamp: Mapping[str, str], budget: object) -> Any:
        return life.disk.open_store(path, stamp, wall_ms)

    async def start_worker(spec: WorkerSpec) -> Child:
        await asyncio.sleep(START_S)
        parent = current()
        child = Process(life.loop, f"{spec.instance.instance}.{spec.number}", parent)
        life.processes.append(child)
        child.at_end += [life.look_at_stores, lambda: life.blast.ended(child)]
        child.start(run_worker(spec, surroundings(life, child, instance)))
        return Child(child)

    return Surroundings(
        wall_ms=wall_ms,
        new_line=lambda: MemoryLine(process),
        clock=life.loop.time,
        contact_clock=life.loop.time,
        new_id=life.new_id,
        credentials=lambda spec: life.credentials(),
        open_log=open_log,
        open_directory=life.disk.open_directory,  # type: ignore[arg-type]
        open_store=open_store,
        open_journal=lambda path, facts: MemoryJournal(life),  # type: ignore[arg-type,return-value]
        open_note=lambda path: CallNote(NoteFile(life.disk, path)),  # type: ignore[arg-type]
        remove_notes=life.disk.remove_notes,
        start_worker=start_worker,
        exit=process.exit,
        app_version=lambda app: "",
        package_version=lambda: "",
        environment={},
    )


async def nowhere_else(names: Collection[str]) -> str | None:
    """A life is on one machine."""
    return None


def start_fleet(life: Life, count: int) -> tuple[Process, Fleet]:
    """`orchestrator run` with its fleet, as a process."""
    process = Process(life.loop, "fleet")
    life.processes.append(process)
    fleet = process.context.run(
        Fleet, Host(life), life.log_client(), life.base, lambda text: life.loop.tell(text), nowhere_else
    )
    process.start(fleet.run(count))
    return process, fleet
