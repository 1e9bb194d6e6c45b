"""What a task asks the log before it begins to process: its halt, where its inputs go on, what the owner before left; and the process
that it then begins with.

One rule: it is asked after the grant, so all of it is final, and all at once: nobody runs the task meanwhile. A task whose
stores are nearly level asks while the last records of its changelogs are read. Where the owner before has said with its release where
it ended, neither positions nor ends are asked for: they are what it has committed, and nobody has written since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from orchestrator.model import Ending, TaskId
from pipeline.calls.task_tables import global_views
from pipeline.process import TaskProcess
from state.log.protocol import GroupLog, Partition
from workers.prepare import Prepared
from workers.tasks import former_owner, halts
from workers.tasks.former_owner import Left
from workers.tasks.halts import Halt
from workers.tasks.port import Port, SharedTables
from workers.tasks.stores import Opened


class Beginning(NamedTuple):
    """The answers."""

    halt: Halt | None
    committed: dict[Partition, int]
    left: Left


class Known(NamedTuple):
    """An Ending as its next owner uses it: positions of the inputs, ends of the changelogs, the last commit (wall ms)."""

    committed: dict[Partition, int]
    ends: dict[Partition, int]
    last_ms: int


def ending(committed: Mapping[Partition, int], stores: Iterable[Opened], last_ms: int) -> Ending:
    """Of an owner that has committed all that it did; its stores hold just that, up to the ends of their changelogs."""
    inputs = ((*one, at) for one, at in sorted(committed.items()))
    changelogs = ((*one.partition, one.store.offset) for one in stores)
    return Ending(tuple(inputs), tuple(changelogs), last_ms)


def read_ending(found: Ending | None, inputs: Sequence[Partition], changelogs: Sequence[Partition]) -> Known | None:
    """None where the release had no ending, or one of a version of the app with other inputs or tables."""
    if found is None:
        return None
    committed, ends = (
        {Partition(topic, number): at for topic, number, at in places} for places in (found.inputs, found.changelogs)
    )
    same = committed.keys() == set(inputs) and ends.keys() == set(changelogs)
    return Known(committed, ends, found.last_ms) if same else None


async def ask(
    log: GroupLog,
    application: str,
    scope: str,
    inputs: Sequence[Partition],
    known: Known | None,
    positions: Callable[[], Awaitable[dict[Partition, int]]],
    globals_known: Callable[[], Awaitable[None]],
) -> Beginning:
    """What is not `known`. Returns once the worker's global tables are known, too."""
    if known is None:
        halt, committed, left, _ = await asyncio.gather(
            halts.read(log, application, scope),
            positions(),
            former_owner.ask(log, application, inputs),
            globals_known(),
        )
        return Beginning(await halts.not_outrun(log, application, scope, halt, committed), committed, left)
    halt, ends, _ = await asyncio.gather(
        halts.read(log, application, scope), former_owner.ends(log, inputs), globals_known()
    )
    halt = await halts.not_outrun(log, application, scope, halt, known.committed)
    return Beginning(halt, known.committed, Left(dict.fromkeys(inputs, known.last_ms), ends))


class ProcessPort(Port, Protocol):
    """What is needed of a worker to run a task."""

    @property
    def prepared(self) -> Prepared: ...
    @property
    def globals(self) -> SharedTables: ...
    @property
    def resources(self) -> Mapping[str, Any]: ...


def process(worker: ProcessPort, task: TaskId, opened: Mapping[str, Opened]) -> TaskProcess:
    """What runs the processors of a task over its stores."""
    prepared = worker.prepared
    return TaskProcess(
        prepared.app,
        prepared.subtopology(task),
        task.partition,
        {table: one.store for table, one in opened.items()},
        prepared.counts(),
        {**worker.resources, **global_views(prepared.app, worker.globals.stores)},
        worker.spec.instance.max_call_ms / 1000,
    )


class Asked:
    """Questions that are under way. A task that needs no answer any more forgets them, and an error of theirs with them."""

    def __init__(self, questions: Coroutine[Any, Any, Beginning]) -> None:
        self._task = asyncio.get_running_loop().create_task(questions)
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def answers(self) -> Beginning | None:
        """None where they were forgotten meanwhile."""
        await asyncio.wait([self._task])
        return None if self._task.cancelled() else self._task.result()

    def forget(self) -> None:
        self._task.cancel()
