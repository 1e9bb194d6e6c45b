"""`orchestrator run --on spark`: instances as long-running Spark tasks. Spark gives slots, the coordinator gives tasks.

One rule: one Spark job an instance, so that Spark starts again the one that crashed (a retry of its task) and no other
notices. An instance is stopped by an order over its connection to the driver (leash.py), and ends in order; cancelling
its job is for one that does not. The coordinator lives in an instance, never in the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import sys
from collections.abc import Mapping
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec

from orchestrator.clocks import monotonic_s
from orchestrator.errors import WrongUse
from pipeline.spark.decommissions import Decommissions
from pipeline.spark.hosted_task import Task, host
from pipeline.spark.leash import Process
from pipeline.spark.leash_server import LeashServer
from pipeline.spark.pods import waiting
from pipeline.spark.properties import users_defaults
from pipeline.spark.running import NO_SLOT_S, no_slot, stage_of
from pipeline.spark.session import SparkFailed, absolute_log, failure, is_gone, log_of, spark_session, stop
from pipeline.spark.source import Source, ship
from workers.commands import run as run_command
from workers.commands.cluster import IN_DRIVER, RETRIES, Cluster
from workers.connection.credentials import instance_credentials
from workers.connection.listening import LOOPBACK, place_of
from workers.end_watch import stopping_signals, wake_no_more
from workers.spec import HOST_GOES, InstanceSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("orchestrator.hosting")
SPARE_SLOTS = 64  # a slot of local[N] is a thread that is not started before it is used
LOOK_S = 0.1
CANCEL_S = 10.0  # a job that Spark has not ended by then: its process is killed all the same
ALONE_S = 20.0  # Spark's end stops the instances; one that runs on after this time is killed
DECOMMISSION_S = 1.0
SPECULATION = "spark.speculation"
KILL_S = 60.0  # then a process that does not end is left to Spark and to the kernel of its machine
HOSTING = {  # before the user's own: executors report that they are taken away, and instances do not all go to the first
    "spark.decommission.enabled": "true",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


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
        self.remote = leashes.expect(task.group, task.spec.instance)
        self._killing: asyncio.Task[None] | None = None
        self._alone = False  # Spark is gone
        self._is_to_end = False  # asked to; a signal to their process group reaches Spark, too
        self._going: Process | None = None  # whose executor Spark takes away
        self._idle_since = monotonic_s()  # not there since then; infinity once that was reported

    @property
    def instance(self) -> str:
        """Its name."""
        return self._task.spec.instance

    @property
    def group(self) -> str:
        """That of its Spark job."""
        return self._task.group

    def has_no_slot(self, now: float) -> bool:
        """Whether no process of it has been there for so long that it is to be looked at; True once each time."""
        if self.is_over or self.remote.is_there:
            self._idle_since = now
        if now - self._idle_since <= NO_SLOT_S:
            return False
        self._idle_since = math.inf
        return True

    def host_goes(self, others: bool) -> None:
        """Spark takes its executor away: it hands over, or where there are no others to take its tasks it stops in order.
        Another one is started for it, elsewhere."""
        found = self.remote.hosted
        if found is not None and self.stays:
            self._going = found.process
            log.warning("%s: Spark takes its executor away; it is started again on another", self._task.spec.instance)
            self.remote.leave("leave" if others else "bounce")

    @property
    def is_over(self) -> bool:
        """Whether its job has ended."""
        return self._done.done()

    @property
    def stays(self) -> bool:
        """Whether it runs on an executor that is not being taken away."""
        return self.remote.is_there and not self._is_going

    @property
    def _is_going(self) -> bool:
        """Of the latest process: one that Spark started after a crash is on another executor."""
        return self.remote.hosted is not None and self.remote.hosted.process == self._going

    def begin(self) -> None:
        """Submit the job."""
        from pyspark import InheritableThread

        InheritableThread(target=self._job, daemon=True, name=self._task.group).start()

    async def wait(self) -> int:
        """See workers.fleet.hosts.Handle. A job that Spark gave up counts as killed: it is submitted again."""
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
        if self._alone and self._is_to_end:
            return 0
        if self._alone:
            raise gone(self._session)
        return HOST_GOES if self._is_going and code == 0 and not self.remote.is_to_end else code

    def bounce(self) -> None:
        """See workers.fleet.hosts.Handle. An instance that is just starting, or starting again, gets it with its first word."""
        self._is_to_end = True
        self.remote.order("bounce")

    def stop(self) -> None:
        self._is_to_end = True
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
        self._handles: list[SparkHandle] = []
        self._looking: asyncio.Task[None] | None = None

    async def start(self, spec: InstanceSpec) -> SparkHandle:
        """Raises SparkFailed where Spark is gone, WrongUse where the driver cannot listen."""
        if is_gone(self._session):
            raise gone(self._session)
        async with self._opening:  # the first instances are started at one moment
            if self._leashes is None:
                leashes = LeashServer(instance_credentials(spec))
                self._address = await leashes.open(*self._place)
                self._leashes = leashes
                self._looking = asyncio.create_task(self._look())
        group = f"instance {spec.instance} {spec.attempt} {token_hex(4)}"
        task = Task(spec, self._address, group, self._is_open)
        handle = SparkHandle(self._session, self._source, self._leashes, task)
        handle.begin()
        self._handles = [*(one for one in self._handles if not one.is_over), handle]
        return handle

    async def _look(self) -> None:
        """For as long as there is Spark."""
        has_executors = not IN_DRIVER.match(str(self._session.sparkContext.master))
        decommissions = Decommissions(self._session) if has_executors else None
        while not is_gone(self._session):
            await asyncio.sleep(DECOMMISSION_S)
            await self._look_for_slots()
            if decommissions is not None:
                await self._look_for_decommissions(decommissions)

    async def _look_for_decommissions(self, decommissions: Decommissions) -> None:
        there = {one.remote.hosted: one for one in self._handles if one.stays and one.remote.hosted is not None}
        try:
            found = await asyncio.to_thread(decommissions.among, there)
        except Exception as error:  # noqa: BLE001 - whatever py4j raises where Java is ending
            log.info("Spark does not say which executors it takes away: %s", error)
            return
        for process in found:
            there[process].host_goes(others=len(found) < len(there))

    async def _look_for_slots(self) -> None:
        """Spark waits for one without end and without a word. A task that runs has one, however long its Python takes."""
        now, context = monotonic_s(), self._session.sparkContext
        for one in [one for one in self._handles if one.has_no_slot(now)]:
            stage = await asyncio.to_thread(stage_of, context, one.group)
            if stage is None or not stage.numActiveTasks:
                pods = await asyncio.to_thread(waiting, context)
                log.warning("%s", no_slot(str(context.master), pods, f"{one.instance} has not begun"))

    async def close(self) -> None:
        """After the last instance."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._leashes is not None:
            await self._leashes.close()


def run_fleet(spec: InstanceSpec, count: int, cluster: Cluster, given: Mapping[str, str] = run_command.EMPTY) -> int:
    """`orchestrator run --on spark`: start Spark, run the fleet on it, stop Spark. A cluster without a master: local, with a
    slot for each instance and some to spare. `given`: see `given_live`."""
    master = cluster.master or f"local[{count + SPARE_SLOTS},{RETRIES}]"
    conf = {**HOSTING, **users_defaults(), **_without_twins(cluster.conf)}
    cluster = msgspec.structs.replace(cluster, master=master, conf=conf)
    _check_reach(spec, cluster)
    spec = msgspec.structs.replace(spec, log=absolute_log(spec.log))
    return asyncio.run(_on_spark(spec, count, cluster, given))


def host_on(session: SparkSession, spec: InstanceSpec, cluster: Cluster) -> tuple[SparkHost, InstanceSpec]:
    """The host of a fleet, and the spec of its instances. On machines of a cluster --listen is where they reach the driver,
    and each listens at an address of its own machine. Raises WrongUse."""
    source = ship(session, spec.app)
    if not cluster.spans_machines:
        return SparkHost(session, source), spec
    named = place_of(spec.listen) if spec.listen else (str(session.sparkContext.getConf().get("spark.driver.host")), 0)
    return SparkHost(session, source, named, is_open=True), msgspec.structs.replace(spec, listen="")


async def _on_spark(spec: InstanceSpec, count: int, cluster: Cluster, given: Mapping[str, str]) -> int:
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

    signals = stopping_signals()
    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    session = await asyncio.to_thread(spark_session, f"instances of {spec.application}", cluster)
    try:
        if not received:
            host_, spec = host_on(session, spec, cluster)
            beginning = loop.create_task(run_command.run_fleet(host_, spec, count, given))
            return await beginning
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in signals:
            loop.add_signal_handler(number, received.append, number)
        if host_ is not None:
            await host_.close()
        await asyncio.to_thread(stop, session)
        wake_no_more()
    print("stopped before an instance was started", file=sys.stderr, flush=True)
    return 128 + received[0]


def _without_twins(conf: Mapping[str, str]) -> dict[str, str]:
    """Spark would take an instance, whose task does not end, for a slow one and start it a second time. Raises WrongUse."""
    if _is_on(conf.get(SPECULATION)):
        raise WrongUse(
            f"--conf {SPECULATION}={conf[SPECULATION]}: two instances of one name would run; leave it out with --on spark (jobs "
            "such as backfill may have it)"
        )
    if _is_on(users_defaults().get(SPECULATION)):
        log.warning("%s of spark-defaults.conf is off here: two instances of one name would run", SPECULATION)
    return {**conf, SPECULATION: "false"}


def _is_on(value: str | None) -> bool:
    return value is not None and value.strip().lower() == "true"


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
