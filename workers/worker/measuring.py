"""What the active tasks of a worker do, looked at every heartbeat; the heartbeats carry it. Of those that are halted, too: what
waits for them grows.

One rule: what is as it was costs nothing: the size of a task at rest is not measured, and its facts are not sent again.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from orchestrator.member.events import Measured, Progress
from orchestrator.model import TaskFacts, TaskId
from state.log.protocol import Partition
from workers.tasks import inputs
from workers.tasks.task import TaskRun
from workers.worker.held_positions import is_held
from workers.worker.ports import SessionPort

SIZE_EVERY = 60  # heartbeats after which also the size of a task at rest is looked at: its store is compacted beside it


class Measuring:
    """See the module text."""

    def __init__(self, worker: SessionPort) -> None:
        self._worker = worker
        self._reported: WeakKeyDictionary[TaskRun, tuple[int, int]] = WeakKeyDictionary()  # epoch and position
        self._sizes: WeakKeyDictionary[TaskRun, tuple[int, int, int]] = (
            WeakKeyDictionary()
        )  # at position, in round, bytes
        self._round = 0
        self._ends: dict[Partition, int] = {}  # of the inputs, at the last look
        self._leaderless: set[Partition] = set()
        self._last: object = None  # who was active, what was committed, and where the inputs ended, at the last look

    def notices(self) -> list[str]:
        """A line for each input that waits for a leader."""
        return [
            f"{one} has no leader, and is neither read nor written until its brokers are back"
            for one in sorted(self._leaderless)
        ]

    async def run(self) -> None:
        """Until cancelled."""
        period_s = self._worker.spec.instance.settings.heartbeat_ms / 1000
        while True:
            await self._worker.pulse.next(period_s)
            await self.look()

    async def look(self) -> None:
        """Positions of running tasks, with which the group compares copies, and the other facts of them."""
        worker = self._worker
        self._round += 1
        looked_at = [*worker.active(), *self._halted()]
        seen = [(run, run.epoch) for run in looked_at], worker.commits
        wanted = [p for run in looked_at for p in run.inputs]
        known = await inputs.ends(worker.log, wanted)
        self._leaderless = set() if known is None else {p for p in wanted if p not in known}
        # A partition without a leader cannot be written: it ends where it did.
        self._ends = ends = {p: self._ends[p] for p in self._leaderless if p in self._ends} | (known or {})
        is_weighed = worker.spec.instance.settings.weights != "given"  # by rates, which fall where nothing happens
        if (seen, ends) == self._last and self._round % SIZE_EVERY and not is_weighed:
            return  # nothing was written, and nothing committed
        self._last = seen, ends
        lags = inputs.lags(ends, looked_at)
        found: dict[TaskRun, int] = {}
        for run in worker.active():
            found[run] = position = run.position()
            if self._reported.get(run) != (run.epoch, position):
                self._reported[run] = run.epoch, position
                worker.event(Progress(run.id, position, position))
        measured = {run: position for run, position in found.items() if run.process is not None}
        measured |= {run: run.position() for run in self._halted()}  # those that are halted by now
        facts: dict[TaskId, tuple[int, int, int, int]] = {
            run.id: TaskFacts(lags.get(run.scope, 0), self._size(run, position), run.records, run.pause_ms)
            for run, position in measured.items()
        }
        worker.event(Measured(facts))

    def _halted(self) -> list[TaskRun]:
        return [run for run in self._worker.runs.values() if is_held(run)]

    def _size(self, run: TaskRun, position: int) -> int:
        known = self._sizes.get(run)
        if known is None or known[0] != position or self._round - known[1] >= SIZE_EVERY:
            known = self._sizes[run] = position, self._round, run.state_bytes()
        return known[2]
