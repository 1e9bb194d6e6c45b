"""`orchestrator run --on spark`: instances as long-running Spark tasks. Spark gives slots, the coordinator gives tasks.

One rule: one Spark job an instance, so that Spark starts again the one that crashed (a retry of its task) and no other
notices. An instance is stopped by a signal to its process, and ends in order; cancelling its job is for one that
does not. The coordinator lives in an instance, never in the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.clocks import wall_ms
from orchestrator.errors import WrongUse
from pipeline.spark.session import SparkFailed, absolute_log, failure, is_gone, log_of, spark_session, stop
from pipeline.spark.source import Source, ship
from state.private import FILE, OTHERS, make_folder
from workers import log_lines
from workers.commands import run as run_command
from workers.commands.cluster import RETRIES, Cluster
from workers.instance.instance import run_instance
from workers.journal import NAME
from workers.spec import InstanceSpec, decode_instance, encode_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("orchestrator.hosting")
SPARE_SLOTS = 64  # a slot of local[N] is a thread that is not started before it is used
LOOK_S = 0.1
CANCEL_S = 10.0  # a job that Spark has not ended by then: its process is killed all the same
ALONE_S = 20.0  # Spark's end stops the instances; one that runs on after this time is killed
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STDERR_BYTES = 4_000
CLOCK_MS = 20  # the kernel counts the start of a process in steps of 10 ms
STDERR = "stderr.log"


# ---------------------------------------------------------------- on an executor


def host(source: Source, specs: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The function of the Spark task: one instance until it ends; its exit code, and what it wrote of a failure.

    The Python process may be used again for another task, so everything is put back as it was.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for text in specs:
        given = decode_instance(text)
        attempt = given.attempt + context.attemptNumber()
        spec = msgspec.structs.replace(given, app=source.app, attempt=attempt, folder=str(source.folder()))
        yield _instance(spec)


def _instance(spec: InstanceSpec) -> tuple[int, str]:
    folder = Path(spec.state_dir) / spec.application / spec.instance
    make_folder(folder)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    mask = os.umask(OTHERS)
    with _stderr_to(folder / STDERR) as written:
        log_lines.set_up(spec.log_level, spec.log_format, spec.instance)
        try:
            code = run_instance(spec)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.umask(mask)
        return code, "" if code == 0 else _tail(written)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[Path]:
    """An executor's standard error is lost in the JVM's log: the instance and its workers get a file of their own."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, FILE)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield path
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _tail(path: Path) -> str:
    return path.read_bytes()[-STDERR_BYTES:].decode(errors="replace")


# ---------------------------------------------------------------- in the driver


class SparkHandle:
    """A job that hosts one instance. All methods are called on the event loop; the job runs in a thread."""

    def __init__(self, session: SparkSession, source: Source, spec: InstanceSpec) -> None:
        self._session = session
        self._context = session.sparkContext
        self._source = source
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[int] = self._loop.create_future()
        self._group = f"instance {spec.instance} {spec.attempt} {token_hex(4)}"
        self._since_ms = wall_ms()
        self._journal = Path(spec.state_dir) / spec.application / spec.instance / NAME
        self._stopping: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._alone = False  # Spark is gone

    def begin(self) -> None:
        """Submit the job."""
        from pyspark import InheritableThread

        InheritableThread(target=self._job, daemon=True, name=self._group).start()

    async def wait(self) -> int:
        """See workers.fleet.fleet.Handle. A job that Spark gave up counts as killed: it is submitted again."""
        code = await asyncio.shield(self._done)
        patience = self._loop.time() + ALONE_S
        while self._alone and self._pid() is not None:
            if self._loop.time() > patience:
                self.kill()
            await asyncio.sleep(LOOK_S)
        if self._killing is not None:
            await asyncio.shield(self._killing)  # its process may outlive the job
        if self._alone:
            raise gone(self._session)
        return code

    def bounce(self) -> None:
        """The process of a Spark task has no leash: its signal is all there is."""
        self.stop()

    def stop(self) -> None:
        """A bounce. An instance that is just starting, or starting again, gets its signal as soon as it is there."""
        if self._stopping is None and not self._done.done():
            self._stopping = self._loop.create_task(self._stop())

    def kill(self) -> None:
        if self._killing is None and (self._alone or not self._done.done()):
            self._killing = self._loop.create_task(self._kill())

    # ---- the thread

    def _job(self) -> None:
        code, written, alone = -signal.SIGKILL, "", False
        try:
            self._context.setJobGroup(self._group, f"instance {self._spec.instance}", False)
            specs = self._context.parallelize([encode_spec(self._spec)], 1)
            code, written = specs.mapPartitions(partial(host, self._source)).collect()[0]
        except Exception as error:  # noqa: BLE001 - Spark gave it up, whatever it calls the reason; the fleet decides
            alone = is_gone(self._session)
            if not alone and self._killing is None:
                log.warning("%s: %s", self._spec.instance, failure(self._session, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter any more
            self._loop.call_soon_threadsafe(self._finish, int(code), written, alone)

    def _finish(self, code: int, written: str, alone: bool) -> None:
        self._alone = alone
        if written:
            print(written.rstrip(), file=sys.stderr, flush=True)
        if not self._done.done():
            self._done.set_result(code)

    # ---- ending it

    async def _stop(self) -> None:
        signalled: set[int] = set()
        while not self._done.done():
            pid = self._pid()
            if pid is not None and pid not in signalled:
                signalled.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            await asyncio.sleep(LOOK_S)

    async def _kill(self) -> None:
        """First the job, or Spark would take the dead process for a crash and start another. Cancelling is only an event
        in Spark's queue, and finds no job before it is submitted: asked again, and not waited for without end."""
        patience = self._loop.time() + CANCEL_S
        while not self._done.done() or self._pid() is not None:
            if not self._done.done():
                try:
                    await asyncio.to_thread(self._context.cancelJobGroup, self._group)
                except Exception as error:  # noqa: BLE001 - Spark is gone, whatever it calls that; the process may not be
                    log.warning("Spark does not cancel the job of %s: %s", self._spec.instance, error)
                    patience = 0.0
                await asyncio.wait([self._done], timeout=LOOK_S)
            pid = self._pid()
            if pid is not None and (self._done.done() or self._loop.time() > patience):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(LOOK_S)

    def _pid(self) -> int | None:
        return process_of(self._journal, self._since_ms)


def process_of(journal: Path, since_ms: int) -> int | None:
    """The process of an instance started at `since_ms` or later, if it runs: its journal knows, Spark does not.

    Numbers of processes are given again, soon on a busy host: one that began after its line in the journal was written
    is another program's, and a signal would end that.
    """
    try:
        lines = journal.read_text().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if row["what"] == "instance ended" or row["at_ms"] < since_ms:
            return None
        if row["what"] == "instance":
            pid = int(row["pid"])
            began_ms = _began_ms(pid)
            return pid if began_ms is not None and began_ms <= row["at_ms"] + CLOCK_MS else None
    return None


def _began_ms(pid: int) -> int | None:
    """When a process began, by the wall clock; None where there is none. Without /proc every process is old."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, PermissionError):
            return None
        return 0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in ("Z", "X"):
        return None
    up_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return wall_ms() - int((time.clock_gettime(time.CLOCK_BOOTTIME) - up_s) * 1000)


def gone(session: SparkSession) -> SparkFailed:
    return SparkFailed(
        f"Spark is gone: its Java process has ended or stopped it, and the instances with it; its log is {log_of(session)}; "
        "run it again, it goes on where they ended"
    )


class SparkHost:
    """Instances in the slots of a Spark session. A crashed one comes back as another attempt of its Spark task."""

    def __init__(self, session: SparkSession, source: Source) -> None:
        self._session = session
        self._source = source

    async def start(self, spec: InstanceSpec) -> SparkHandle:
        """Raises SparkFailed where Spark is gone."""
        if is_gone(self._session):
            raise gone(self._session)
        handle = SparkHandle(self._session, self._source, spec)
        handle.begin()
        return handle


def run_fleet(spec: InstanceSpec, count: int, cluster: Cluster) -> int:
    """`orchestrator run --on spark`: start Spark, run the fleet on it, stop Spark. A cluster without a master: local, with a
    slot for each instance and some to spare."""
    master = cluster.master or f"local[{count + SPARE_SLOTS},{RETRIES}]"
    _check_log(spec.log, master)
    spec = msgspec.structs.replace(spec, log=absolute_log(spec.log))
    return asyncio.run(_on_spark(spec, count, msgspec.structs.replace(cluster, master=master)))


async def _on_spark(spec: InstanceSpec, count: int, cluster: Cluster) -> int:
    """Spark is started and stopped whole, in a thread (in the main one it would take the signals): one that comes
    meanwhile is acted on after it, so that nothing of Spark stays behind."""
    loop = asyncio.get_running_loop()
    received: list[int] = []
    beginning: asyncio.Task[int] | None = None

    def on_signal(number: int) -> None:
        received.append(number)
        if beginning is not None:  # until the fleet handles the signals itself
            beginning.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    session = await asyncio.to_thread(spark_session, f"instances of {spec.application}", cluster)
    try:
        if not received:
            host_ = SparkHost(session, ship(session, spec.app))
            beginning = loop.create_task(run_command.run_fleet(host_, spec, count))
            return await beginning
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in SIGNALS:
            loop.add_signal_handler(number, received.append, number)
        await asyncio.to_thread(stop, session)
    print("stopped before an instance was started", file=sys.stderr, flush=True)
    return 128 + received[0]


def _check_log(url: str, master: str) -> None:
    """A SQLite log is a file: instances on other hosts would each have another one."""
    here = ("local", "spark://127.0.0.1", "spark://localhost")
    if url.startswith("sqlite:") and not master.startswith(here):
        raise WrongUse(f"{url} is on this host, and instances on {master} may not be; name a Kafka log with --log")
