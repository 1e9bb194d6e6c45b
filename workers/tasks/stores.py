"""Opening the stores of a task: what is on disk if it may be trusted, else the newest snapshot, else empty.

One rule: a store that is damaged, foreign or too old costs a restore and a message, never an answer. A changelog that
goes on from a base (`state.log.base`) is replayed behind a snapshot only; without one the task is not opened at all, and neither
is one whose changelog lost its beginning to others (`state.log.cut_changelogs`): then what lies on disk stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clocks import monotonic_ms
from orchestrator.model import TaskId
from pipeline.errors import PipelineError
from state import history, manifest, snapshot
from state.changelog import LEADER_EPOCH, PARTITION, SHORT, misplaced, usable
from state.directory import StateDirectory
from state.errors import ChangelogCut, SnapshotUnusable, StateError, StoreDamaged, StoreDeleted
from state.history import History
from state.log import base, cut_changelogs
from state.log.base import Base
from state.log.protocol import GroupLog, Partition
from state.manifest import SnapshotManifest, TableManifest
from state.store.protocol import Store, TakesFiles
from state.store.rocksdb import Budget
from workers.prepare import Prepared
from workers.surroundings import REAL, Surroundings
from workers.tasks.damaged import Damaged

log = logging.getLogger("orchestrator.stores")
CAPACITY_RETRY_S, CAPACITY_LOOK_S = 5.0, 0.1
OnRead = Callable[[int, int], Awaitable[None]]  # of a piece of a snapshot: its bytes, and the position they lead to


@dataclass(slots=True)
class Opened:
    """An open store: where it came from ("disk", "snapshot", "empty") and at which position; `how`: from which snapshot, or why
    from the changelog alone where there was one, with the times that either was expected to take."""

    store: Store
    partition: Partition
    source: str
    position: int
    how: str = ""


@dataclass(frozen=True, slots=True)
class _Changelog:
    """The changelog of a table of a task: its bounds, and what it goes on from."""

    task: TaskId
    table: str
    partition: Partition
    start: int
    end: int
    base: Base | None
    kept_ms: int  # for how long its compaction keeps a deletion
    forgotten: int  # below which it keeps none
    taken: int  # the beginning with which an operator took it as it is
    is_whole: bool  # it was written back what a store had: nothing is missing behind that

    def delete_retention_ms(self) -> int:
        return self.kept_ms if self.base is None else base.FOR_EVER_MS

    def is_cut(self) -> bool:
        """Whether entries are gone that are nowhere else, and nobody has said that this may be so."""
        return self.base is None and self.start > self.taken

    def goes_on(self) -> bool:
        """Whether a store that stands before the beginning goes on with what it has, as an operator wants it and as nothing has more."""
        return self.base is None and 0 < self.start <= self.taken and not self.is_whole


class StoreOpener:
    """Opens the stores of an instance's tasks; blocking work runs in threads."""

    def __init__(
        self,
        log: GroupLog,
        prepared: Prepared,
        directory: StateDirectory,
        snapshots: str,
        surroundings: Surroundings = REAL,
    ) -> None:
        self._log = log
        self._prepared = prepared
        self._directory = directory
        self._snapshots = Path(snapshots) if snapshots else None
        self._surroundings = surroundings
        self._budget = Budget()
        self._past = History()
        self.damaged = Damaged(log, prepared, directory)
        self._learned_term = -1  # of the coordinator under whose term the history was read

    async def learn(self, term: int) -> str:
        """Read the log's history again where `term` is newer than what was read; returns the id for stamps."""
        if term > self._learned_term:
            self._past = await history.read(self._log, self._prepared.app.id)
            self._learned_term = term
        return self._past.id

    def is_of_this_history(self, opened: Opened) -> bool:
        """Whether an open store is, by its stamp and by how far it is."""
        stamp = opened.store.stamp().get(history.STAMP, "")
        return self._past.problem(stamp, opened.partition, opened.store.offset) is None

    async def open(self, task: TaskId, read: OnRead | None = None) -> dict[str, Opened]:
        """All tables of a task. The caller holds the task's lock. `read` is called with every piece that is read of a
        snapshot: its bytes, and the position that they lead to; the next piece is read when it returns. Raises BaseMissing,
        with nothing left behind, and ChangelogCut."""
        tables = self._prepared.subtopology(task).tables
        partitions = [self._prepared.changelog(task, table) for table in tables]
        await self.learn(0)
        starts, ends = await self._log.starts(partitions), await self._log.ends(partitions, settled=True)
        forgotten = await self._log.forgotten(partitions)
        bases = await self._log.metadata_of(self._prepared.app.id, base.BASE)
        cut: Mapping[str, bytes] = {}
        if any(starts.values()):
            cut = await self._log.metadata_of(self._prepared.app.id, cut_changelogs.STARTS)
        opened: dict[str, Opened] = {}
        try:
            for table, partition in zip(tables, partitions, strict=True):
                info = self._prepared.topics[partition.topic]
                based = base.of_topic(bases, info)
                taken = cut_changelogs.taken(cut, info)
                as_it_is = taken.starts.get(partition.number, 0), partition.number in taken.stores
                kept = info.delete_retention_ms, forgotten.get(partition, 0), *as_it_is
                change = _Changelog(task, table, partition, starts[partition], ends[partition], based, *kept)
                opened[table] = await self._open_table(change, _behind(opened, read))
        except BaseException:
            for one in opened.values():
                one.store.close()
            raise
        for one in opened.values():
            one.store.mark(history.STAMP, self._past.id)  # another term may have begun while they were opened
        return opened

    async def _open_table(self, change: _Changelog, read: OnRead | None) -> Opened:
        store = await asyncio.to_thread(self._from_disk, change)
        if (reason := await self._cut_off(store, change)) is not None:
            store = await asyncio.to_thread(self._instead, store, change, reason)
        elif 0 < store.offset < change.start:
            self._say_gone(change, f"between {store.offset} and there")
            await asyncio.to_thread(store.write, {}, change.start, is_whole=False)
        if store.offset > 0:
            return Opened(store, change.partition, "disk", store.offset)
        try:
            is_filled, why = await self._from_snapshot(store, change, read)
            if not is_filled and change.base is not None:
                what = f"{change.task}, table {change.table}: the changelog {change.partition}"
                raise base.missing(what, change.base, why, self._snapshots)
        except BaseException:
            await asyncio.to_thread(self._give_back, store, change)
            raise
        if is_filled:
            return Opened(store, change.partition, "snapshot", store.offset, why)
        if change.is_cut():
            await asyncio.to_thread(self._give_back, store, change)
            raise self._refused(change, "no store lies here")
        if change.start > 0:
            if not change.is_whole:
                self._say_gone(change, "before that")
            await asyncio.to_thread(store.write, {}, change.start, is_whole=False)
        return Opened(store, change.partition, "empty", store.offset, why)

    def _from_disk(self, change: _Changelog) -> Store:
        """What lies on disk, or an empty store in place of what may not be trusted."""
        path = self._directory.table(str(change.task), change.table)
        if (damage := self.damaged.what(path)) is not None:
            return self._instead(None, change, damage)
        store: Store | None = None
        try:
            store = self._surroundings.open_store(path, self._stamp(change), self._budget)
            reason = misplaced(store.stamp(), change.partition.number)
            reason = reason or usable(
                store.offset,
                store.stamp(),
                log_id=self._log.log_id,
                topic_id=self._topic_id(change),
                start=0 if change.goes_on() else change.start,
                end=change.end,
                delete_retention_ms=change.delete_retention_ms(),
                now_ms=self._surroundings.wall_ms(),
                forgotten=change.forgotten,
                positions_stay=self._log.epoch(change.partition) >= 0,
            )
            reason = reason or self._past.problem(store.stamp().get(history.STAMP, ""), change.partition, store.offset)
            if reason is None and store.offset:
                reason = base.needed(store.offset, change.base)
        except (
            StoreDeleted
        ) as error:  # while it was opened; who deleted it has a line of its own (worker/deleted_stores.py)
            return self._anew(store, change, str(error), logging.INFO)
        except StoreDamaged as error:
            reason = str(error)
        if reason is not None:
            return self._instead(store, change, reason)
        assert store is not None
        try:
            self._mark(store, change)
        except StateError:
            with suppress(StateError):
                store.close()
            raise
        return store

    def _instead(self, store: Store | None, change: _Changelog, reason: str) -> Store:
        """An empty store in place of one that may not be trusted, where it can be filled. Raises ChangelogCut, with that one as it is."""
        if change.is_cut() and not self._has_snapshot(change):
            if store is not None:
                store.close()
            raise self._refused(change, f"the store cannot be used ({reason})")
        return self._anew(store, change, reason)

    def _refused(self, change: _Changelog, why: str) -> ChangelogCut:
        who = f"table {change.table}, of which {why}"
        return cut_changelogs.refused(self._prepared.app.id, change.partition, change.start, who)

    def _say_gone(self, change: _Changelog, where: str) -> None:
        log.warning(
            "%s, table %s: its changelog %s begins at %d; what was removed %s is missing",
            *(change.task, change.table, change.partition, change.start, where),
        )

    def _anew(self, store: Store | None, change: _Changelog, reason: str, level: int = logging.WARNING) -> Store:
        """An empty store in place of this one."""
        task, table = str(change.task), change.table
        what, short, _ = reason.partition(f"; {SHORT}")
        log.log(level, "%s, table %s: %s; it is wiped and restored%s", task, table, what, short)
        if store is not None:
            store.close()
        self._directory.wipe(task, table)
        self.damaged.gone(path := self._directory.table(task, table))
        made = self._surroundings.open_store(path, self._stamp(change), self._budget)
        self._mark(made, change)
        return made

    def _mark(self, store: Store, change: _Changelog) -> None:
        before = store.stamp().get(history.STAMP, "")
        store.mark(history.STAMP, self._past.id)
        store.mark(PARTITION, str(change.partition.number))
        if store.offset and before != self._past.id:
            store.write({}, store.offset, is_whole=False)
            if self._past.is_old(before):
                store.flush()

    def _stamp(self, change: _Changelog) -> dict[str, str]:
        return {"log_id": self._log.log_id, "topic_id": self._topic_id(change), history.STAMP: self._past.id}

    async def _cut_off(self, store: Store, change: _Changelog) -> str | None:
        """Why this store has what its changelog has lost in an election, however long it is again by now. Closes the store
        where that cannot be asked."""
        epoch = store.stamp().get(LEADER_EPOCH)
        if epoch is None or not store.offset:
            return None
        try:
            end = (await self._log.epoch_ends({change.partition: int(epoch)})).get(change.partition, store.offset)
        except BaseException:
            await asyncio.to_thread(store.close)
            raise
        if store.offset <= end:
            return None
        lost = f"its changelog has kept {end} of what was written before: {change.partition} lost records"
        return f"it stands at {store.offset}, and {lost}; {SHORT}"

    def _give_back(self, store: Store, change: _Changelog) -> None:
        store.close()
        self._directory.wipe(str(change.task), change.table)

    def _topic_id(self, change: _Changelog) -> str:
        return self._prepared.topics[change.partition.topic].topic_id

    async def _from_snapshot(self, store: Store, change: _Changelog, read: OnRead | None) -> tuple[bool, str]:
        """Fill an empty store from the newest snapshot that may be used, where that is cheaper than a replay: whether that was
        done, and from which, or why not."""
        if self._snapshots is None:
            return False, "no folder of snapshots is named"
        why = f"it is not in {self._snapshots}"
        if change.base is None:
            why = f"no snapshot in {self._snapshots} is of this application and log, with as many partitions"
        for found in await asyncio.to_thread(self._candidates, self._snapshots, change):
            what = f"snapshot {found.snapshot}"
            try:
                described = await asyncio.to_thread(self._described, self._snapshots, change, found)
                cost = snapshot.estimate(described, change.start, change.end)
                if cost.replay_is_cheaper and change.base is None and change.start == 0:
                    log.info("%s, table %s: replayed; %s takes %s", change.task, change.table, what, cost)
                    return False, f"{what} takes {cost}"
                await self._ingest(store, change, self._snapshots / found.snapshot, described, read)
            except SnapshotUnusable as error:
                log.warning("%s, table %s: %s is not used: %s", change.task, change.table, what, error)
                why = str(error)
                continue
            log.info("%s, table %s: restored from %s: %s", change.task, change.table, what, cost)
            self._mark(store, change)
            return True, f"{what}: {cost}"
        return False, why

    def _candidates(self, root: Path, change: _Changelog) -> list[SnapshotManifest]:
        """The snapshots that fit, the newest first."""
        if not root.is_dir():
            return []
        counts: Mapping[str, int] = self._prepared.counts()
        name = "" if change.base is None else change.base.snapshot
        found = manifest.fitting(root, self._prepared.app.id, self._log.log_id, counts, base=name)
        return [one for one in found if str(change.task) in one.scopes]

    async def _ingest(
        self, store: Store, change: _Changelog, made: Path, described: TableManifest, read: OnRead | None
    ) -> None:
        """Fill an empty store from a snapshot. A thread reads one piece at a time and waits for none: a copy that keeps to its
        budget holds up no other task of the worker. Raises SnapshotUnusable."""
        if not isinstance(store, TakesFiles):
            raise SnapshotUnusable("only a store on disk takes files")
        folder = made / str(change.task)
        pieces = snapshot.verified(folder, described.files)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            if read is not None:
                await read(piece.bytes, int(described.offset * piece.share))
        await asyncio.to_thread(snapshot.take, store, folder, described)

    def _has_snapshot(self, change: _Changelog) -> bool:
        if self._snapshots is None:
            return False
        for found in self._candidates(self._snapshots, change):
            with suppress(SnapshotUnusable):
                self._described(self._snapshots, change, found)
                return True
        return False

    def _described(self, root: Path, change: _Changelog, found: SnapshotManifest) -> TableManifest:
        """What a snapshot has of the table. Raises SnapshotUnusable where it may not be used for this changelog."""
        scope = manifest.load_scope(root, found, str(change.task))
        reason = snapshot.problem(
            scope,
            change.table,
            log_id=self._log.log_id,
            topic_id=self._topic_id(change),
            start=change.start,
            end=change.end,
            delete_retention_ms=change.delete_retention_ms(),
            now_ms=self._surroundings.wall_ms(),
            forgotten=change.forgotten,
        )
        described = scope.table(change.table)
        if described is not None:
            reason = reason or base.needed(described.offset, change.base)
            if not found.base:  # of a base the log itself says that it fits
                reason = reason or self._past.problem(found.history, change.partition, described.offset)
        if described is None or reason is not None:
            raise SnapshotUnusable(reason or f"it has no table {change.table}")
        return described


def origins(stores: Mapping[str, Opened]) -> dict[str, object]:
    """What the journal has of where a task's stores come from."""
    sources = sorted({opened.source for opened in stores.values()}) or ["stateless"]
    return {"source": "+".join(sources), "how": {table: opened.how for table, opened in stores.items() if opened.how}}


async def close(store: Store) -> StateError | None:
    """Closes a store beside the loop; returns why its last writes are not on disk. One that was deleted has none to lose."""
    try:
        await asyncio.to_thread(store.close)
    except StoreDeleted as error:
        log.info("%s", error)
    except StateError as error:
        return error
    return None


def _behind(opened: Mapping[str, Opened], read: OnRead | None) -> OnRead | None:
    """Positions of a task are sums over its tables: those that are open already count."""
    if read is None:
        return None
    base = sum(one.store.offset for one in opened.values())
    return lambda size, position: read(size, base + position)


async def wait_for_capacity(is_over: Callable[[], bool]) -> None:
    """A task that found no file or no space left, or no permission, is placed again at once, and most likely here: others may give
    theirs back first. Returns once the next try may find some, or once this one `is_over`."""
    until_ms = monotonic_ms() + 1000 * CAPACITY_RETRY_S
    while monotonic_ms() < until_ms and not is_over():  # noqa: ASYNC110 - neither has an event
        await asyncio.sleep(CAPACITY_LOOK_S)


def disk_positions(
    directory: StateDirectory, names: Iterable[str], prepared: Prepared, log_id: str
) -> dict[TaskId, int]:
    """State of the named tasks that lies on disk whole: task -> sum of its tables' positions. Other processes are not
    disturbed."""
    found: dict[TaskId, int] = {}
    for name in names:
        try:
            task = TaskId.parse(name)
            wanted = prepared.subtopology(task).tables
        except (ValueError, PipelineError) as error:  # a folder of another version of the app
            log.info("%s on disk is of no use: %s", name, error)
            continue
        tables = directory.tables(name)
        peeks = [tables[table].peek for table in wanted if table in tables]
        if len(peeks) == len(wanted) and all(p is not None and p.stamp.get("log_id") == log_id for p in peeks):
            found[task] = sum(p.offset for p in peeks if p is not None)
    return found
