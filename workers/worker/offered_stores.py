"""A worker's stores, offered to its instance: keys are looked up for the clients that query the instance; and what it measures,
where the instance serves metrics or sends them.

One rule: what was in the log when a question came is in the answer, or in its lag: a commit that is under way is waited for, and a copy asks
how far its changelog is by now. Only the instance that started the worker looks into its stores; what a client may read is checked at the
instance's listener (instance_stores.py), and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.transport import connect
from orchestrator.errors import OrchestratorError, ProtocolError
from orchestrator.model import Role, TaskId
from state.errors import StateError
from state.log.protocol import Partition
from state.store.protocol import Store, TakesCopies
from workers.metrics.otlp import is_collected
from workers.tasks.task import TaskRun
from workers.worker.ports import Commits, StoresPort

log = logging.getLogger("orchestrator.stores")
Ends = Mapping[Partition, int]
RETRY_S, REPORT_S = 0.5, 1.0
SURE_S = 2.0  # so long a log is waited for that does not answer; then what the store has is the answer
PAGE_PAIRS, PAGE_BYTES = 1_000, 1 << 20
ENTRY_BYTES_MAX = (
    messages.FRAME_BYTES_MAX - 2 * PAGE_BYTES
)  # of a key and its value, beside which a page finds its place
KEPT_MS = 3_600_000  # copies of a tool that did not end in order


async def run(worker: StoresPort, commits: Commits) -> None:
    """Until cancelled. Without the instance's listener there are no queries, and the worker goes on."""
    if not worker.spec.address:
        await asyncio.Event().wait()
    reported = ""
    while True:
        try:
            connection = await connect(worker.spec.address, worker.surroundings.credentials(worker.spec.instance))
            try:
                reported = ""
                await _offer(worker, commits, connection)
            finally:
                await connection.close()
        except ConnectionEnded as error:
            log.debug("stores: %s", error)
        except OrchestratorError as error:
            if str(error) != reported:
                log.warning("the stores of this worker cannot be queried: %s", error)
            reported = str(error)
        await asyncio.sleep(RETRY_S)


async def _offer(worker: StoresPort, commits: Commits, connection: Connection) -> None:
    spec = worker.spec
    connection.send(messages.Attach(messages.VERSION, spec.number, spec.incarnation, worker.member))
    is_read = spec.instance.metrics_port or is_collected(worker.surroundings.environment)
    reporting = asyncio.create_task(_report(worker, connection)) if is_read else None
    under_way = set() if reporting is None else {reporting}
    try:
        while True:
            wanted = await connection.receive_down()
            if isinstance(wanted, messages.CopyStores):
                connection.send(await copied(worker, wanted))
                continue
            if not isinstance(wanted, messages.Lookup | messages.Scan):
                raise ProtocolError(f"{type(wanted).__name__} is no message of an instance to its worker")
            answering = asyncio.create_task(_answer(worker, commits, connection, wanted))
            under_way.add(answering)
            answering.add_done_callback(under_way.discard)
    finally:
        for task in under_way:
            task.cancel()


async def _answer(
    worker: StoresPort, commits: Commits, connection: Connection, wanted: messages.Lookup | messages.Scan
) -> None:
    try:
        connection.send(await answered(worker, commits, wanted))
    except ConnectionEnded as error:  # the task that receives raises it, too
        log.debug("stores: %s", error)
    except Exception as error:  # noqa: BLE001 - a task of the loop: whatever it is ends the worker with it
        worker.crashed(error)


async def answered(
    worker: StoresPort, commits: Commits, wanted: messages.Lookup | messages.Scan
) -> messages.Found | messages.Scanned:
    """See the module's rule."""
    ends = await _ends(worker, commits, wanted)
    run = worker.runs.get(TaskId.parse(wanted.task))
    try:
        return scan(worker, wanted, ends) if isinstance(wanted, messages.Scan) else look_up(worker, wanted, ends)
    except StateError as error:  # it costs the task, as where its own processor reads the store
        if run is not None:
            worker.failed(run, error)
        if isinstance(wanted, messages.Scan):
            return messages.Scanned(wanted.id, [], False, "", 0, f"{wanted.task}: {error}")
        return messages.Found(wanted.id, None, "", 0, f"{wanted.task}: {error}")


async def _ends(worker: StoresPort, commits: Commits, wanted: messages.Lookup | messages.Scan) -> Ends:
    """Of the changelogs of a task that is only copied here, as the log has them by now, or as they were seen last. Of one that is processed
    or halted here the store is not behind them: none; what is being committed is in it then."""
    run = worker.runs.get(TaskId.parse(wanted.task))
    if run is None:
        return {}
    with contextlib.suppress(TimeoutError, StateError):
        async with asyncio.timeout(SURE_S):
            if _is_whole(run):
                if commits.commit is not None:
                    await asyncio.wait([commits.commit])
            elif run.ends:
                return await worker.log.ends(list(run.ends), settled=True)
    return run.ends


async def _report(worker: StoresPort, connection: Connection) -> None:
    """Send what the worker has measured, every second: the instance has it when it is read, whatever this worker does then."""
    while True:
        with contextlib.suppress(ConnectionEnded):  # the task that receives raises it, and ends this one
            connection.send(messages.Measured(worker.measured()))
        await asyncio.sleep(REPORT_S)


def look_up(worker: StoresPort, lookup: messages.Lookup, ends: Ends) -> messages.Found:
    """The value of a key, or why there is none to be had."""
    found = _store(worker, lookup, ends)
    if isinstance(found, str):
        return messages.Found(lookup.id, None, "", 0, found)
    store, role, lag, epoch = found
    value = store.get(lookup.key)
    if value is not None and len(value) > ENTRY_BYTES_MAX:
        return messages.Found(lookup.id, None, "", 0, _too_large(lookup, len(value)))
    return messages.Found(lookup.id, value, role, lag, epoch=epoch)


def scan(worker: StoresPort, wanted: messages.Scan, ends: Ends) -> messages.Scanned:
    """A page of pairs, or why there is none to be had. It is small, because the loop of the worker waits for it."""
    found = _store(worker, wanted, ends)
    if isinstance(found, str):
        return messages.Scanned(wanted.id, [], False, "", 0, found)
    store, role, lag, epoch = found
    pairs: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in store.range(wanted.start, wanted.stop):
        if len(pairs) >= min(wanted.limit, PAGE_PAIRS) or size >= PAGE_BYTES:
            return messages.Scanned(wanted.id, pairs, True, role, lag, epoch=epoch)
        if (entry := len(key) + len(value)) > ENTRY_BYTES_MAX:
            if pairs:
                return messages.Scanned(wanted.id, pairs, True, role, lag, epoch=epoch)
            return messages.Scanned(wanted.id, [], False, "", 0, _too_large(wanted, entry))
        pairs.append((key, value))
        size += entry
    return messages.Scanned(wanted.id, pairs, False, role, lag, epoch=epoch)


def _too_large(wanted: messages.Lookup | messages.Scan, size: int) -> str:
    return (
        f"{wanted.task}, table {wanted.table}: an entry of {size} bytes is more than the {ENTRY_BYTES_MAX} that are sent; "
        "`orchestrator table` reads it where nothing runs"
    )


async def copied(worker: StoresPort, wanted: messages.CopyStores) -> messages.Copied:
    """Copies of all open stores, each as it is at its moment: it says itself up to where it has its changelog. The copies that
    earlier requests left go."""
    directory = worker.directory
    now_ms = worker.surroundings.wall_ms()
    await asyncio.to_thread(directory.remove_copies, older_than_ms=KEPT_MS, now_ms=now_ms)
    stores: list[tuple[str, str, str, str]] = []
    problems: list[str] = []
    for task, run in list(worker.runs.items()):
        role = "active" if _is_whole(run) else "restoring" if run.catching_up else "standby"
        for table, opened in list(run.stores.items()):
            if not isinstance(opened.store, TakesCopies):
                continue
            folder: Path = directory.copies(wanted.request) / str(task) / table
            try:
                await asyncio.to_thread(opened.store.copy_to, folder)
                stores.append((str(task), table, str(folder.absolute()), role))
            except StateError as error:
                problems.append(f"{task}, table {table}: {error}")
    return messages.Copied(wanted.id, stores, problems)


def _store(
    worker: StoresPort, wanted: messages.Lookup | messages.Scan, ends: Ends
) -> tuple[Store, str, int, int] | str:
    """The store, the role in which it is held, how far it is behind these ends, and the epoch in which its task is held: 0 of a copy,
    which no grant has made. A sentence where nothing can be read."""
    run = worker.runs.get(TaskId.parse(wanted.task))
    opened = run.stores.get(wanted.table) if run is not None else None
    if run is not None and opened is None and run.process is not None:  # an older version runs it, or a later one
        return (
            f"{wanted.task} runs on {worker.spec.instance.instance} in a version of the app without a table "
            f"'{wanted.table}'; it is read where a version that has it runs the task"
        )
    if run is None or opened is None:
        return f"{wanted.task} is not open on {worker.spec.instance.instance}; try again"
    if _is_whole(run):
        return opened.store, "active", 0, run.epoch
    if not run.ends:  # how much is missing is not known yet: a key that is not there may be on its way
        return f"{wanted.task} has just been opened on {worker.spec.instance.instance}, and what it lacks is not known yet; try again"
    lag = max(0, sum((ends or run.ends).values()) - run.position())
    return opened.store, "active" if run.catching_up else "standby", lag, run.epoch


def _is_whole(run: TaskRun) -> bool:
    """Whether its stores have all that the task has committed, as its owner's have once they were restored: it processes, or is halted. By
    offsets this would not show: on Kafka a marker lies behind each commit, which no store counts."""
    return run.process is not None or (run.halt is not None and run.role is Role.ACTIVE and not run.catching_up)
