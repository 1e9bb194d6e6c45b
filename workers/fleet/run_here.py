"""`app.run()`: one instance in this process, its worker beside it on one loop, so that a debugger sees every call.

One rule: the instance and the worker are those of `orchestrator run`; only what starts a process is another. Nothing times
out while a debugger holds a breakpoint: sessions and calls last a day.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from orchestrator.error_report import report
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.model import Settings
from orchestrator.names import counted
from pipeline.app import App
from pipeline.errors import PipelineError
from pipeline.loading import runnable
from state.errors import StateError
from state.log.memory import MemoryLog
from state.log.protocol import GroupLog
from state.open_files import raise_limit
from workers import topic_identities
from workers.connection.credentials import instance_credentials
from workers.first_start import refuse_cut_off, refuse_first_start
from workers.fleet.client import Client, elsewhere
from workers.fleet.fleet import Fleet
from workers.fleet.hosts import ProcessHost
from workers.fleet.named import NamedInstance
from workers.instance.instance import Instance
from workers.log.logs import configured, default_log, no_broker, open_log, show_log
from workers.missing_inputs import prepare_and_say
from workers.spec import FAILED_APP, LOG_REPLACED, NO_SPACE, InstanceSpec, WorkerSpec
from workers.surroundings import REAL, Surroundings
from workers.worker.worker_main import run_worker

STATE = ".orchestrator/state"
PATIENCE_MS = 24 * 3_600_000  # a person at a breakpoint
KILLED = -9
MEMORY = "memory:"
INTERRUPTED = 130


class WorkerHere:
    """A worker on the loop of its instance. See `workers.surroundings.WorkerProcess`."""

    def __init__(self, spec: WorkerSpec, around: Surroundings) -> None:
        self._pipe = asyncio.StreamReader()
        self._running = asyncio.create_task(run_worker(spec, replace(around, requests=self._requests)))

    @property
    def returncode(self) -> int | None:
        if not self._running.done():
            return None
        return KILLED if self._running.cancelled() else self._running.result()

    def send(self, request: bytes) -> None:
        self._pipe.feed_data(request + b"\n")

    def kill(self) -> None:
        self._running.cancel()

    def is_stopped(self) -> bool:
        return False  # or its instance would stand still, too

    async def wait(self) -> int:
        await asyncio.wait([self._running])
        code = self.returncode
        assert code is not None
        return code

    async def _requests(self) -> asyncio.StreamReader:
        return self._pipe


def run_app(app: App, *, log: str = "", state_dir: str = "") -> None:
    """Run an app until it is stopped (Ctrl-C). `log` is a URL as of `--log`, "memory:" for one that is gone with
    the process. Raises SystemExit with the exit code of `orchestrator run` where it fails; the reason is on standard error.
    """
    try:
        _refuse_where_it_cannot_run()
        runnable(app, f"app.run() of {app.id!r}")
        url = configured(log or default_log(app.id, Path.cwd(), existing=False), "")
        spec = InstanceSpec(
            app=app.id,
            application=app.id,
            instance="i1",
            log=url,
            state_dir=str(Path(state_dir or STATE).absolute()),
            folder=str(Path.cwd()),
            settings=Settings(session_timeout_ms=PATIENCE_MS),
            max_call_ms=PATIENCE_MS,
            started_with=1,
        )
        raise_limit()
        code = asyncio.run(_run(app, spec)) if url != MEMORY or state_dir else _run_in_passing(app, spec)
    except (OrchestratorError, StateError, PipelineError) as error:
        code = report(error)
    except KeyboardInterrupt:  # before the instance listens to signals
        code = INTERRUPTED
    if code:
        raise SystemExit(1 if code in (FAILED_APP, LOG_REPLACED, NO_SPACE) else code)


def _run_in_passing(app: App, spec: InstanceSpec) -> int:
    """With state that is gone afterwards, as the log is: in the usual folder it would take the place of a log's that stays."""
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        return asyncio.run(_run(app, msgspec.structs.replace(spec, state_dir=folder)))


def _refuse_where_it_cannot_run() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise WrongUse("app.run() listens to signals: call it from the main thread")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrongUse("app.run() has a loop of its own: call it outside of a coroutine, or use `orchestrator run`")


async def _run(app: App, spec: InstanceSpec) -> int:
    memory = MemoryLog() if spec.log == MEMORY else None
    refuse_cut_off(spec.log, app.id, spec.state_dir)
    opened: GroupLog = memory or await open_log(spec.log, create=True)
    client = Client(opened, app.id, lambda: instance_credentials(spec), spec.log)
    others = partial(elsewhere, client)
    name = NamedInstance(ProcessHost(), opened, spec, print, others)
    fleet = Fleet(ProcessHost(), opened, spec, print, others)  # for its lock: it starts nothing
    try:
        fleet.claim()
        await fleet.check()
        await refuse_first_start(opened, app, spec.log)
        await name.announce()  # so that a fleet that is started beside it, with state elsewhere, has no i1
        await fleet.check()
        await topic_identities.check(opened, app)
        prepared = await prepare_and_say(opened, app, spec.log, partial(print, file=sys.stderr, flush=True))
        await topic_identities.check_trimming(opened, prepared)
        await topic_identities.keep(opened, prepared)
        return await _run_here(app, spec, memory, len(prepared.tasks()))
    finally:
        await name.forget()
        fleet.release_lock()
        await opened.close()


async def _run_here(app: App, spec: InstanceSpec, memory: MemoryLog | None, tasks: int) -> int:
    where = "a log in memory" if memory is not None else f"{show_log(spec.log)}{no_broker(spec.log)}"
    print(f"1 instance, {counted(tasks, 'task')}, {where}; Ctrl-C stops it", file=sys.stderr, flush=True)
    around = replace(REAL, load_app=lambda name, folder: app)
    if memory is not None:

        async def given(_: InstanceSpec) -> GroupLog:
            return memory

        around = replace(around, open_log=given)

    async def start(worker: WorkerSpec) -> WorkerHere:
        return WorkerHere(worker, around)

    return await Instance(spec, surroundings=replace(around, start_worker=start)).run()
