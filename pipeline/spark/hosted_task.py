"""A Spark task that hosts one instance: what runs on an executor.

One rule: the Python process may be used again for another task, so everything is put back as it was. In the flow: hosting
(the driver) submits `host` with a `Task` -> Leash, `run_instance` -> the exit code is the job's result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from orchestrator.error_report import report
from orchestrator.errors import OrchestratorError
from pipeline.spark.leash import Hosted, Leash, hosted
from pipeline.spark.source import Source
from state.errors import StateError
from state.private import FILE, OTHERS, make_folder
from workers import log_lines
from workers.connection.credentials import instance_credentials
from workers.instance.instance import run_instance
from workers.spec import InstanceSpec

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STDERR_BYTES = 4_000
STDERR = "stderr.log"


class Task(msgspec.Struct, frozen=True):
    """What a Spark task needs to host an instance: its spec, the address of the driver, and the group of the job.
    `is_open`: other machines are to reach the instance, at the address from which it reaches the driver."""

    spec: InstanceSpec
    driver: str
    group: str
    is_open: bool


def host(source: Source, tasks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The function of the Spark task: one instance until it ends; its exit code, and what it wrote of a failure."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for text in tasks:
        task = msgspec.json.decode(text, type=Task)
        tried = context.attemptNumber()
        spec = msgspec.structs.replace(
            task.spec, app=source.app, attempt=task.spec.attempt + tried, folder=str(source.folder())
        )
        yield _instance(spec, task, hosted(task.group, tried, context.stageId(), context.taskAttemptId()))


def _instance(spec: InstanceSpec, task: Task, introduction: Hosted) -> tuple[int, str]:
    folder = Path(spec.state_dir) / spec.application / spec.instance
    try:
        make_folder(folder)
    except OSError as error:
        where = f"the state folder {folder} on {introduction.host} cannot be made"
        return 1, f"error: {where} ({error.strerror}); choose another with --state-dir"
    before = {number: signal.getsignal(number) for number in SIGNALS}
    mask = os.umask(OTHERS)
    with _stderr_to(folder / STDERR) as begun:
        log_lines.set_up(spec.log_level, spec.log_format, spec.instance)
        try:
            code = _leashed(spec, task, introduction)
        except (OrchestratorError, StateError) as error:
            code = report(error)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.umask(mask)
        return code, "" if code == 0 else _tail(folder / STDERR, begun)


def _leashed(spec: InstanceSpec, task: Task, introduction: Hosted) -> int:
    """Raises what the driver's end says of a secret that does not fit, and DriverAway."""
    with Leash(task.driver, instance_credentials(spec), introduction) as leash:
        if task.is_open:
            own = leash.own_host
            spec = msgspec.structs.replace(spec, listen=f"[{own}]:0" if ":" in own else f"{own}:0")
        return run_instance(spec, leash=leash.descriptor)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[int]:
    """An executor's standard error is lost in the JVM's log: the instance and its workers get a file of their own, and every
    attempt adds to it. Gives where this one begins."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    begun = os.fstat(target).st_size
    os.dup2(target, 2)
    os.close(target)
    try:
        yield begun
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _tail(path: Path, begun: int) -> str:
    """The end of what stands behind `begun`: a file that many attempts have added to may be long."""
    with path.open("rb") as file:
        file.seek(max(begun, file.seek(0, os.SEEK_END) - STDERR_BYTES))
        return file.read(STDERR_BYTES).decode(errors="replace")
