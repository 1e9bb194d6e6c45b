"""Jobs of Spark beside an event loop: started in a thread, cancelled with their caller, with their progress on the terminal.

One rule: what a call has begun is over when it returns, also where it was cancelled; jobs of others in the same session are
not touched. In the flow: commands -> `spark` -> `in_thread` -> engine, comparing, snapshotting.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from orchestrator.clocks import monotonic_s
from pipeline.spark.pods import waiting
from pipeline.spark.session import SparkFailed, forget_failure, is_gone, load_sql, log_of, spark_session, stop, why_gone
from workers.commands.cluster import Cluster
from workers.commands.show import CLEAR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Callable[[], str]
Waiting = Callable[[], set[str]]
logger = logging.getLogger("orchestrator.spark")
LOOK_S, CANCEL_S = 1.0, 0.2
NO_SLOT_S = 15.0  # without a task that runs, before a line says so
ROUNDED_S = 5
LINE_EVERY_S = 60.0  # elsewhere than on a terminal


@asynccontextmanager
async def spark(
    session: SparkSession | None, name: str, cluster: Cluster, say: Callable[[str], None] | None = None
) -> AsyncIterator[SparkSession]:
    """The session given, or one of our own that is stopped at the end. Raises SparkFailed, in plain words where Java has ended."""
    if session is not None:
        yield session
        return
    made = await asyncio.to_thread(spark_session, name, cluster, is_for_tasks=True)
    try:
        if cluster.ui and say is not None:
            say(f"Spark's own page of jobs: {made.sparkContext.uiWebUrl}")
        yield made
        await asyncio.to_thread(load_sql, made)
    except Exception as error:  # py4j has several for a Java that is gone, and sockets have theirs
        if not isinstance(error, SparkFailed) and not _is_call_of_java(error):
            raise
        if await asyncio.to_thread(is_gone, made):
            raise SparkFailed(why_gone(log_of(made), cluster.master)) from error
        raise
    finally:
        await asyncio.to_thread(stop, made)


def _is_call_of_java(error: Exception) -> bool:
    from py4j.protocol import Py4JError

    return isinstance(error, Py4JError | OSError)


async def in_thread(session: SparkSession, function: Any, *args: Any, rows: Rows = str, waits: Waiting = set) -> Any:
    """A blocking call of Spark; a cancelled one cancels its jobs and waits for their end. `rows`: how many its stage has come
    through, in words; `waits`: what of it waits for a client."""
    context = session.sparkContext
    group = f"stream-orchestrator {token_hex(6)}"

    def called() -> Any:
        context.setJobGroup(group, str(context.appName), False)
        try:
            return function(*args)
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]

    running = asyncio.create_task(asyncio.to_thread(called))
    reporting = asyncio.create_task(_report(context, group, rows, waits))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _called_off(context, group, running)
        if not running.cancelled() and running.exception() is not None:
            logger.debug("cancelled: %s", running.exception())
            forget_failure(session)
        raise
    finally:
        reporting.cancel()
        await asyncio.wait([reporting])


async def _called_off(context: Any, group: str, running: asyncio.Task[Any]) -> None:
    """Returns once the call is over, however often this is cancelled meanwhile: its folders are removed after it."""
    while not running.done():  # between two jobs there is none to cancel: the next one is
        with suppress(asyncio.CancelledError):
            with suppress(Exception):  # py4j has several for a Java that is gone, with which the call ends by itself
                await asyncio.to_thread(context.cancelJobGroup, group)
            await asyncio.wait([running], timeout=CANCEL_S)


async def _report(context: Any, group: str, rows: Rows, waits: Waiting) -> None:
    """How far the stage is, and when it may be over: in place on a terminal, elsewhere a line a minute. One line where Spark has no slot
    to give, and one for each error that waits, which may last for ever."""
    begun = idle_since = shown = monotonic_s()
    known: set[str] = set()
    stage, complained, bar = -1, False, sys.stderr.isatty()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            found = await asyncio.to_thread(stage_of, context, group)
            now = monotonic_s()
            if found is None or found.numActiveTasks or found.numCompletedTasks == found.numTasks:
                idle_since = now
            elif now - idle_since > NO_SLOT_S and not complained:
                complained = True
                line = no_slot(context.master, await asyncio.to_thread(waiting, context))
                print(f"{CLEAR if bar else ''}warning: {line}", file=sys.stderr, flush=True)
            for text in sorted(await asyncio.to_thread(waits) - known):
                known.add(text)
                line = f"{text}; it is tried again until it succeeds, Ctrl-C ends the command"
                print(f"{CLEAR if bar else ''}warning: {line}", file=sys.stderr, flush=True)
            if found is not None and found.stageId != stage:
                stage, begun = found.stageId, now
            if bar:
                line = _line(found, now - begun, await asyncio.to_thread(rows))
                print(f"{CLEAR}{line}", end="", file=sys.stderr, flush=True)
            elif found is not None and now - shown >= LINE_EVERY_S:
                print(_line(found, now - begun, await asyncio.to_thread(rows)), file=sys.stderr, flush=True)
                shown = now
    finally:
        if bar:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def stage_of(context: Any, group: str) -> Any:
    """What Spark says of the stage that runs for a group of jobs. A job also lists stages whose rows an earlier one has left: these
    never run, and never end."""
    tracker = context.statusTracker()
    active = set(tracker.getActiveStageIds())
    for job in tracker.getJobIdsForGroup(group):
        described = tracker.getJobInfo(job)
        for number in sorted(active.intersection(described.stageIds)) if described is not None else ():
            found = tracker.getStageInfo(number)
            if found is not None and found.numCompletedTasks < found.numTasks:
                return found
    return None


def no_slot(master: str, pods: str = "", what: str = "Spark has run no task") -> str:
    """That nothing runs. `pods`: what Kubernetes reports of those of executors."""
    why = pods or (
        f"{master} has no free slot for this application (cores, or memory for an executor; see --conf spark.executor.memory, "
        "spark.cores.max)"
    )
    return f"{what} for {NO_SLOT_S:g} s: {why}; it waits for one, Ctrl-C ends it"


def _line(stage: Any, took_s: float, rows: str) -> str:
    if stage is None:
        return ""
    done, count = stage.numCompletedTasks, stage.numTasks
    text = f"{done} of {count} tasks of this stage" + (f", {rows}" if rows else "")
    if not done:
        return text
    left_s = took_s / done * (count - done)
    return f"{text}, about {max(ROUNDED_S, round(left_s / ROUNDED_S) * ROUNDED_S)} s left"
