"""Learners, standbys and starting tasks: their changelogs are read into their stores.

One rule: progress is a position; ready is announced by the machine, from positions and ends, never from counts. Copies
keep to the instance's restore budget, which its workers share evenly, and give way to commits and hand-overs
(`giving_way.py`); a task that runs nowhere meanwhile does neither, and goes before them.
"""

from __future__ import annotations

import asyncio

from orchestrator.clocks import monotonic_ms
from orchestrator.member.events import Progress
from state.changelog import CHUNK, chunks
from state.errors import DirectoryUnusable, LogDamaged, PositionOutOfRange, StateError, StoreDamaged
from state.log.protocol import Fetched, Partition, Reader
from state.store.protocol import Store
from workers.tasks.stores import wait_for_capacity
from workers.tasks.task import TaskRun
from workers.worker.giving_way import waits
from workers.worker.ports import RestorePort
from workers.worker.throttle import TokenBucket
from workers.worker.unreadable import Unreadable

ENDS_EVERY_S = 0.25
WAIT_MS = 25
FETCH_BYTES, FETCH_BYTES_MIN = 1 << 20, 16 << 10
FETCH_BYTES_BESIDE, CHUNK_BESIDE = 256 << 10, 500  # of copies, where tasks process in the same interpreter
REST_BESIDE_S = 0.001  # between two chunks of them: what others of this machine wait for is done meanwhile, too
COPIES_EVERY = 8  # while an active task restores, copies are read in one round of so many: enough to show progress


class RestoreLoop:
    """One reader for all changelogs that this worker follows."""

    def __init__(self, worker: RestorePort) -> None:
        self._worker = worker
        self._reader: Reader = worker.log.reader()
        self._runs: dict[Partition, TaskRun] = {}
        self._ends_at = 0.0
        instance = worker.spec.instance
        share = -(-instance.restore_rate_limit // instance.workers)
        self._bucket = TokenBucket(share)
        self._paused: set[Partition] = set()
        self.unreadable = Unreadable(worker.surroundings.clock)
        self._round = 0
        self._begun = asyncio.Event()  # there is a copy to follow

    def add(self, run: TaskRun, partition: Partition, position: int) -> None:
        """A copy within a budget begins paused: `_choose` says when and how much, also while a poll without a bound waits."""
        is_followed = self._is_followed(run, partition)
        self._runs[partition] = run
        self._paused.discard(partition)
        self.unreadable.forget(partition)
        if self._bucket.rate and run.is_copy():
            self._paused.add(partition)
            self._reader.drop(partition)  # it may be followed already, in another role
        elif not is_followed:
            self._reader.add(partition, position)
        self._begun.set()

    def _is_followed(self, run: TaskRun, partition: Partition) -> bool:
        """Whether it is read already for this task, whose role has changed: what has been fetched is not fetched again."""
        can_be_read = partition not in self._paused and not self.unreadable.holds(partition)
        return self._runs.get(partition) is run and can_be_read

    def drop(self, partition: Partition) -> None:
        if self._runs.pop(partition, None) is not None:
            self._paused.discard(partition)
            self.unreadable.forget(partition)
            self._reader.drop(partition)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._runs:
                self._begun.clear()
                await self._begun.wait()
            size = self._choose()
            for partition, _ in self.unreadable.due():
                one = self._runs[partition].by_changelog.get(partition) if partition in self._runs else None
                if one is not None:
                    self._reader.add(partition, one.store.offset)
            try:
                fetched = await self._reader.poll(max_bytes_per_partition=size, wait_ms=WAIT_MS)
            except PositionOutOfRange as error:
                self._records_are_gone(error)
                continue
            self._bucket.step(monotonic_ms(), sum(len(p.data) for p in fetched if self._is_copy(p.partition)))
            touched: dict[TaskRun, None] = {}
            for part in sorted(fetched, key=lambda one: self._is_copy(one.partition)):
                run = self._runs.get(part.partition)
                opened = run.by_changelog.get(part.partition) if run is not None else None
                if run is None or opened is None:
                    continue  # dropped while the fetch was under way
                if opened.store.offset != part.position:
                    # Added again while a fetch was under way: the store knows where to go on, the reader does not.
                    self._reader.add(part.partition, opened.store.offset)
                    continue
                try:
                    await self._replay(run, opened.store, part)
                except LogDamaged as error:
                    self.unreadable.hold(part.partition, part.position, error)
                    self._reader.drop(part.partition)
                    continue
                except StoreDamaged as error:
                    self._worker.failed(run, error)
                    continue
                except DirectoryUnusable as error:
                    self._has_no_capacity(run, error)
                    continue
                except StateError as error:
                    if self._runs.get(part.partition) is run:
                        self._worker.crashed(error)
                        return
                touched[run] = None
            if loop.time() >= self._ends_at:
                self._ends_at = loop.time() + ENDS_EVERY_S
                touched.update(dict.fromkeys(self._runs.values()))
                await self._read_ends()
            for run in touched:
                self._report(run)

    async def _replay(self, run: TaskRun, store: Store, part: Fetched) -> None:
        """Bring a store to the end of a fetch. A copy gives way between two pieces, to a task that is taken over by leaving the
        store where it is: the fetch is read again later."""
        giving_way = self._worker.giving_way
        is_beside = self._is_beside()
        pieces = chunks(store, part, chunk=CHUNK_BESIDE if is_beside else CHUNK)
        for waited_s in waits(pieces, self._worker.surroundings.not_running_s):
            await asyncio.sleep(giving_way.rest_s(waited_s, REST_BESIDE_S if is_beside else 0) if run.is_copy() else 0)
            if run.is_copy() and store.offset != part.next_position:
                await giving_way.commit_over()
                if run.is_copy() and giving_way.expects_any() and not giving_way.expects(run.id):
                    if self._runs.get(part.partition) is run and part.partition not in self._paused:
                        self._reader.add(part.partition, store.offset)
                    return
            if self._runs.get(part.partition) is not run:
                return  # dropped meanwhile: its task may have begun, and what the store has by now is newer

    def _is_beside(self) -> bool:
        """Whether other tasks process here, or are about to, while a copy is restored."""
        return self._worker.giving_way.expects_any() or any(run.process for run in self._worker.runs.values())

    def _records_are_gone(self, error: PositionOutOfRange) -> None:
        """The changelog begins behind what a store has yet to read, or has lost what the store has: that costs its task, which is
        restored where the group places it. The store stays for the next open, which judges it, with a line in the log."""
        partition = Partition(*error.partition)
        run = self._runs.get(partition)
        opened = run.by_changelog.get(partition) if run is not None else None
        if run is None or opened is None:
            return  # dropped while the fetch was under way
        for one in list(run.by_changelog):
            self.drop(one)
        self._worker.failed(run, error)

    def _has_no_capacity(self, run: TaskRun, error: StateError) -> None:
        """That costs the task, and not those beside it; it is given up in a while, for it is placed again at once."""

        async def give_up() -> None:
            await wait_for_capacity(lambda: run.closing or run.release_wanted)
            raise error

        for one in list(run.by_changelog):
            self.drop(one)
        run.then(give_up)

    async def spend(self, run: TaskRun, read: int) -> None:
        """A copy has read `read` bytes of a snapshot: return when it may go on. What is to run, or to be closed, may."""
        taken = read if run.is_copy() else 0
        while run.is_copy() and self._bucket.step(monotonic_ms(), taken) == 0:
            taken = 0
            await asyncio.sleep(WAIT_MS / 1000)

    def _is_copy(self, partition: Partition) -> bool:
        run = self._runs.get(partition)
        return run is not None and run.is_copy()

    def _choose(self) -> int:
        """How much to fetch of each partition. Copies are left out while the budget is used up, while a task is taken over, and
        most of the time while a task that is to run here restores: that one runs nowhere meanwhile."""
        self._round += 1
        allowed = self._bucket.step(monotonic_ms())
        copies = [p for p in self._runs if self._is_copy(p)]
        urgent = len(copies) < len(self._runs)
        wait = allowed == 0 or bool(urgent and self._round % COPIES_EVERY)
        self._pause(copies if wait else self._that_give_way(copies))
        most = FETCH_BYTES_BESIDE if copies and not urgent and self._is_beside() else FETCH_BYTES
        if wait or allowed is None:
            return most
        return min(most, max(FETCH_BYTES_MIN, allowed // max(1, len(copies))))

    def _that_give_way(self, copies: list[Partition]) -> list[Partition]:
        giving_way = self._worker.giving_way
        if not giving_way.expects_any():
            return []
        return [one for one in copies if not giving_way.expects(self._runs[one].id)]

    def _pause(self, partitions: list[Partition]) -> None:
        """These and no others wait: a copy that is to run now goes on, however little of the budget is left."""
        before, self._paused = self._paused, set(partitions)
        for partition in sorted(self._paused - before):
            self._reader.drop(partition)
        for partition in sorted(before - self._paused):
            opened = self._runs[partition].by_changelog.get(partition)
            if opened is not None:
                self._reader.add(partition, opened.store.offset)

    async def _read_ends(self) -> None:
        partitions = list(self._runs)
        asked_ms = self._worker.surroundings.wall_ms()
        ends = await self._worker.log.ends(partitions)
        for partition, end in ends.items():
            run = self._runs.get(partition)
            opened = run.by_changelog.get(partition) if run is not None else None
            if opened is not None and opened.store.offset >= end:
                opened.store.whole_at(asked_ms)
            if run is not None and not run.catching_up:
                run.ends[partition] = end

    def _report(self, run: TaskRun) -> None:
        if run.catching_up:
            run.caught_up()
        elif run.by_changelog and run.process is None:
            position, end = run.position(), sum(run.ends.values())
            if position >= end:
                self._worker.level(run)
            self._worker.event(Progress(run.id, position, end))
            if self._worker.is_ready(run.id):
                self._worker.giving_way.expect(run.id)
