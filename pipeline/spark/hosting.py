"""`orchestrator run --on spark`: instances as long-running Spark tasks. Spark gives slots, the coordinator gives tasks.

One rule: one Spark job an instance, so that Spark starts again the one that crashed (a retry of its task) and no other
notices. An instance is stopped by an order over its connection to the driver (leash.py), and ends in order; cancelling
its job is for one that does not. The coordinator lives in an instance, never in the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec

from orchestrator.error_report import report
from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.spark.leash import Hosted, Leash, hosted
from pipeline.spark.leash_server import LeashServer
from pipeline.spark.session import SparkFailed, absolute_log, failure, is_gone, log_of, spark_session, stop
from pipeline.spark.source import Source, ship
from state.errors import StateError
from state.private import FILE, OTHERS, make_folder
from workers import log_lines
from workers.commands import run as run_command
from workers.commands.cluster import RETRIES, Cluster
from workers.connection.credentials import instance_credentials
from workers.connection.listening import LOOPBACK, place_of
from workers.instance.instance import run_instance
from workers.spec import InstanceSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("orchestrator.hosting")
SPARE_SLOTS = 64  # a slot of local[N] is a thread that is not started before it is used
LOOK_S = 0.1
CANCEL_S = 10.0  # a job that Spark has not ended by then: its process is killed all the same
ALONE_S = 20.0  # Spark's end stops the instances; one that runs on after this time is killed
KILL_S = 60.0  # then a process that does not end is left to Spark and to the kernel of its machine
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STDERR_BYTES = 4_000
STDERR = "stderr.log"


# ---------------------------------------------------------------- on an executor


class Task(msgspec.Struct, frozen=True):
    """What a Spark task needs to host an instance: its spec, the address of the driver, and the group of the job.
    `is_open`: other machines are to reach the instance, at the address from which it reaches the driver."""

    spec: InstanceSpec
    driver: str
    group: str
    is_open: bool


def host(source: Source, tasks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The function of the Spark task: one instance until it ends; its exit code, and what it wrote of a failure.

    The Python process may be used again for another task, so everything is put back as it was.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for text in tasks:
        task = msgspec.json.decode(text, type=Task)
        tried, number = context.attemptNumber(), context.taskAttemptId()
        spec = msgspec.structs.replace(
            task.spec, app=source.app, attempt=task.spec.attempt + tried, folder=str(source.folder())
        )
        yield _instance(spec, task, hosted(task.group, tried, number))


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
    return path.read_bytes()[begun:][-STDERR_BYTES:].decode(errors="replace")


# ---------------------------------------------------------------- in the driver


class SparkHandle:
    """A job that hosts one instance. All methods are called on the event loop; the job runs in a thread."""

    def __init__(self, session: SparkSession, source: Source, leashes: LeashServer, task: Task) -> None:
        self._session = session
        self._context = session.sparkContext
        self._source = source
        self._leashes = leashes
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[int] = self._loop.create_future()
        self.remote = leashes.expect(task.group)
        self._killing: asyncio.Task[None] | None = None
        self._alone = False  # Spark is gone

    def begin(self) -> None:
        """Submit the job."""
        from pyspark import InheritableThread

        InheritableThread(target=self._job, daemon=True, name=self._task.group).start()

    async def wait(self) -> int:
        """See workers.fleet.fleet.Handle. A job that Spark gave up counts as killed: it is submitted again."""
        code = await asyncio.shield(self._done)
        patience = self._loop.time() + ALONE_S
        while self._alone and self.remote.is_there:
            if self._loop.time() > patience:
                self.kill()
            await asyncio.sleep(LOOK_S)
            if self._killing is not None:
                break
        if self._killing is not None:
            await asyncio.shield(self._killing)  # its process may outlive the job
        self._leashes.forget(self._task.group)
        if self._alone:
            raise gone(self._session)
        return code

    def bounce(self) -> None:
        """See workers.fleet.fleet.Handle. An instance that is just starting, or starting again, gets it with its first word."""
        self.remote.order("bounce")

    def stop(self) -> None:
        self.remote.order("stop")

    def kill(self) -> None:
        if self._killing is None and (self._alone or not self._done.done()):
            self._killing = self._loop.create_task(self._kill())

    # ---- the thread

    def _job(self) -> None:
        code, written, alone = -signal.SIGKILL, "", False
        instance = self._task.spec.instance
        try:
            self._context.setJobGroup(self._task.group, f"instance {instance}", False)
            tasks = self._context.parallelize([msgspec.json.encode(self._task).decode()], 1)
            code, written = tasks.mapPartitions(partial(host, self._source)).collect()[0]
        except Exception as error:  # noqa: BLE001 - Spark gave it up, whatever it calls the reason; the fleet decides
            alone = is_gone(self._session)
            if not alone and self._killing is None:
                log.warning("%s: %s", instance, failure(self._session, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter any more
            self._loop.call_soon_threadsafe(self._finish, int(code), written, alone)

    def _finish(self, code: int, written: str, alone: bool) -> None:
        self._alone = alone
        if written:
            print(written.rstrip(), file=sys.stderr, flush=True)
        if not self._done.done():
            self._done.set_result(code)

    # ---- ending it

    async def _kill(self) -> None:
        """First the job, or Spark would take the dead process for a crash and start another. Cancelling is only an event
        in Spark's queue, and finds no job before it is submitted: asked again, and not waited for without end."""
        begun = self._loop.time()
        patience = begun + CANCEL_S
        while not self._done.done() or self.remote.is_there:
            if not self._done.done():
                try:
                    await asyncio.to_thread(self._context.cancelJobGroup, self._task.group)
                except Exception as error:  # noqa: BLE001 - Spark is gone, whatever it calls that; the process may not be
                    log.warning("Spark does not cancel the job of %s: %s", self._task.spec.instance, error)
                    patience = 0.0
                await asyncio.wait([self._done], timeout=LOOK_S)
            if self._done.done() or self._loop.time() > patience:
                self.remote.order("kill")
                self.remote.kill_here()
                await asyncio.sleep(LOOK_S)
            if self._done.done() and self._loop.time() > begun + KILL_S:
                self._leave_it()
                return

    def _leave_it(self) -> None:
        """Neither Spark nor the process answers. What it holds is fenced before others get it."""
        found = self.remote.hosted
        where = f"process {found.process.pid} on {found.host}" if found is not None else "unknown where"
        log.warning("%s does not end (%s); its job is cancelled", self._task.spec.instance, where)


def gone(session: SparkSession) -> SparkFailed:
    return SparkFailed(
        f"Spark is gone: its Java process has ended or stopped it, and the instances with it; its log is {log_of(session)}; "
        "run it again, it goes on where they ended"
    )


class SparkHost:
    """Instances in the slots of a Spark session. A crashed one comes back as another attempt of its Spark task.

    `place`: where the driver listens to them. `is_open`: they may be on other machines, and listen at addresses of these.
    """

    def __init__(
        self, session: SparkSession, source: Source, place: tuple[str, int] = (LOOPBACK, 0), is_open: bool = False
    ) -> None:
        self._session = session
        self._source = source
        self._place = place
        self._is_open = is_open
        self._leashes: LeashServer | None = None
        self._opening = asyncio.Lock()
        self._address = ""

    async def start(self, spec: InstanceSpec) -> SparkHandle:
        """Raises SparkFailed where Spark is gone, WrongUse where the driver cannot listen."""
        if is_gone(self._session):
            raise gone(self._session)
        async with self._opening:  # the first instances are started at one moment
            if self._leashes is None:
                leashes = LeashServer(instance_credentials(spec))
                self._address = await leashes.open(*self._place)
                self._leashes = leashes
        group = f"instance {spec.instance} {spec.attempt} {token_hex(4)}"
        task = Task(spec, self._address, group, self._is_open)
        handle = SparkHandle(self._session, self._source, self._leashes, task)
        handle.begin()
        return handle

    async def close(self) -> None:
        """After the last instance."""
        if self._leashes is not None:
            await self._leashes.close()


def run_fleet(spec: InstanceSpec, count: int, cluster: Cluster) -> int:
    """`orchestrator run --on spark`: start Spark, run the fleet on it, stop Spark. A cluster without a master: local, with a
    slot for each instance and some to spare."""
    master = cluster.master or f"local[{count + SPARE_SLOTS},{RETRIES}]"
    cluster = msgspec.structs.replace(cluster, master=master)
    _check_reach(spec, cluster)
    spec = msgspec.structs.replace(spec, log=absolute_log(spec.log))
    return asyncio.run(_on_spark(spec, count, cluster))


def host_on(session: SparkSession, spec: InstanceSpec, cluster: Cluster) -> tuple[SparkHost, InstanceSpec]:
    """The host of a fleet, and the spec of its instances. On machines of a cluster --listen is where they reach the driver,
    and each listens at an address of its own machine. Raises WrongUse."""
    source = ship(session, spec.app)
    if not cluster.spans_machines:
        return SparkHost(session, source), spec
    named = place_of(spec.listen) if spec.listen else (str(session.sparkContext.getConf().get("spark.driver.host")), 0)
    return SparkHost(session, source, named, is_open=True), msgspec.structs.replace(spec, listen="")


async def _on_spark(spec: InstanceSpec, count: int, cluster: Cluster) -> int:
    """Spark is started and stopped whole, in a thread (in the main one it would take the signals): one that comes
    meanwhile is acted on after it, so that nothing of Spark stays behind."""
    loop = asyncio.get_running_loop()
    received: list[int] = []
    beginning: asyncio.Task[int] | None = None
    host_: SparkHost | None = None

    def on_signal(number: int) -> None:
        received.append(number)
        if beginning is not None:  # until the fleet handles the signals itself
            beginning.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    session = await asyncio.to_thread(spark_session, f"instances of {spec.application}", cluster)
    try:
        if not received:
            host_, spec = host_on(session, spec, cluster)
            beginning = loop.create_task(run_command.run_fleet(host_, spec, count))
            return await beginning
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in SIGNALS:
            loop.add_signal_handler(number, received.append, number)
        if host_ is not None:
            await host_.close()
        await asyncio.to_thread(stop, session)
    print("stopped before an instance was started", file=sys.stderr, flush=True)
    return 128 + received[0]


def _check_reach(spec: InstanceSpec, cluster: Cluster) -> None:
    """Instances on other machines share neither a file of this one nor its loopback. Raises WrongUse."""
    if not cluster.spans_machines:
        return
    if spec.log.startswith("sqlite:"):
        raise WrongUse(
            f"{spec.log} is on this host, and instances on {cluster.master} may not be; name a Kafka log with --log"
        )
    missing = [
        option
        for option, value in (
            ("--secret-file", spec.secret_file),
            ("--tls-cert", spec.tls_cert),
            ("--tls-key", spec.tls_key),
        )
        if not value
    ]
    if missing:
        raise WrongUse(
            f"instances on {cluster.master} talk to each other and to this driver over the network; name files for "
            f"{', '.join(missing)} that lie at the same path on every machine"
        )
