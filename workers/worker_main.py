"""The entry of a worker process: `python -m workers.worker_main`, spec on the first line of standard input.

One rule: the pipe is the parent. Lines on it are wishes (`stop`, `leave`); its end is the parent's death, and the
worker's. Exit codes: 0 left or stopped, 1 failed (the reason is on standard error, one line), 3 refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from orchestrator.cli.main import report
from orchestrator.errors import OrchestratorError
from pipeline.errors import PipelineError, ProcessorFailed
from pipeline.loading import load
from pipeline.resources import Resources
from state.errors import StateError
from workers.logs import open_log
from workers.prepare import prepare
from workers.spec import WorkerSpec, decode_worker, first_line
from workers.worker import Worker

FAILED_APP = 70  # the user's code failed: another instance would fail on the same record


def main() -> int:
    line = first_line()
    if not line:
        return 1
    spec = decode_worker(line)
    logging.basicConfig(
        level=os.environ.get("ORCHESTRATOR_LOG_LEVEL", "WARNING").upper(),
        format=f"%(asctime)s {spec.instance.instance}.{spec.number} %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        return asyncio.run(_run(spec))
    except ProcessorFailed as error:
        report(error)
        return FAILED_APP
    except (OrchestratorError, StateError, PipelineError) as error:
        return report(error)
    except KeyboardInterrupt:
        return 130


async def _run(spec: WorkerSpec) -> int:
    app = load(spec.instance.app, Path(spec.instance.folder))
    log = await open_log(spec.instance.log, create=False, synchronous=spec.instance.synchronous)
    try:
        prepared = await prepare(log, app)
        async with Resources(app) as resources:
            worker = Worker(spec, log, prepared, resources)
            listening = asyncio.create_task(_listen(worker))
            try:
                return await worker.run()
            finally:
                listening.cancel()
    finally:
        await log.close()


async def _listen(worker: Worker) -> None:
    """The parent's wishes. When the pipe ends, nobody supervises this process any more: it ends at once."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        wish = line.strip()
        if wish == b"stop":
            worker.stop()
        elif wish == b"leave":
            worker.leave()
    if not worker.stopping.is_set():
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
