"""The entry of a worker process: `python -m workers.worker.worker_main`, spec on the first line of standard input.

One rule: the pipe is the parent. Lines on it are requests (`stop`, `leave`, `end`); its end is the parent's death, and the
worker's. What it reports of its end is an exit code (0 left or stopped, 1 failed, 3 refused, ...; the reason is on
standard error, one line) above REPORTED: a process that ends with any other code has crashed, whatever called exit.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from pathlib import Path

from orchestrator.error_report import report, written_out
from orchestrator.errors import OrchestratorError
from pipeline.errors import PipelineError
from pipeline.resources import Resources
from state.errors import LogReplaced, PositionOutOfRange, StateError, UnknownTopic
from state.open_files import raise_limit
from state.private import private_process
from workers import log_lines
from workers.connection.credentials import in_renewal
from workers.log.patient_log import open_patiently
from workers.prepare import prepare
from workers.spec import BOUNCED, REPORTED, WorkerSpec, decode_worker, end_of_worker, first_line, refuse_another
from workers.surroundings import OF_A_PROCESS, REAL, Surroundings
from workers.worker import growth, stand_still
from workers.worker.worker import Worker

# The thread of the connection waits so long for the interpreter (5 ms by default), twice in each hand-over
SWITCH_S = 0.0005


def main() -> int:
    line = first_line()
    if not line:
        return 1
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable()  # a crash in native code (RocksDB, an extension of the app) says where on standard error
    private_process()
    raise_limit()
    spec = decode_worker(line)
    log_lines.set_up(spec.instance.log_level, spec.instance.log_format, spec.instance.instance, spec.number)
    stand_still.watch(spec.instance)
    try:
        return asyncio.run(run_worker(spec, OF_A_PROCESS))
    except KeyboardInterrupt:
        return 130


async def run_worker(spec: WorkerSpec, surroundings: Surroundings = REAL) -> int:
    """Runs a worker to its end; returns what its process ends with, with the reason on standard error."""
    try:
        return REPORTED + await _run(spec, surroundings)
    except (OrchestratorError, StateError, PipelineError) as error:
        if not (isinstance(error, LogReplaced) and spec.instance.is_watched):
            report(error)
        return end_of_worker(error)


async def _run(spec: WorkerSpec, surroundings: Surroundings) -> int:
    app = surroundings.load_app(spec.instance.app, Path(spec.instance.folder))
    refuse_another(app.id, spec.instance)
    limit_s = spec.instance.log_timeout_ms / 1000
    log = await open_patiently(lambda: surroundings.open_log(spec.instance), limit_s, surroundings.clock)
    try:
        prepared = await prepare(log, app)
        await in_renewal(surroundings.credentials, spec.instance)
        async with Resources(app) as resources:
            worker = Worker(spec, log, prepared, resources, surroundings)
            listening = asyncio.create_task(_listen(worker))
            signals = Signals(worker)
            surroundings.on_sigterm(signals.first, signals.again)
            surroundings.freeze()  # modules and the app: a walk over them takes longer than a task that begins here may be away
            try:
                return await worker.run()
            except (UnknownTopic, PositionOutOfRange) as error:
                raise await growth.explained(worker, error) from None
            finally:
                listening.cancel()
    finally:
        await log.close()


class Signals:
    """SIGTERM to a worker is one to its instance, as `status` names no other process of it: the first is a bounce (or with
    on_stop=leave a leave), the second ends the process at once. The instance learns of it from the exit code."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def first(self) -> None:
        if self._worker.spec.instance.on_stop == "leave":
            self._worker.leave()
        else:
            self._worker.report = BOUNCED
            self._worker.stop()

    def again(self) -> None:
        self._worker.surroundings.exit(REPORTED + BOUNCED)


async def _listen(worker: Worker) -> None:
    """The parent's requests. When the pipe ends, the instance that supervised this process is gone: it ends at once."""
    reader = await worker.surroundings.requests()
    while line := await reader.readline():
        request = line.strip()
        if request in (b"stop", b"end"):  # a bounce, or the end of an instance of which nothing says that it comes back
            worker.stop(comes_back=request == b"stop")
        elif request == b"leave":
            worker.leave()
    if not worker.stopping.is_set():
        worker.surroundings.exit(1)


if __name__ == "__main__":
    sys.exit(written_out(main()))
