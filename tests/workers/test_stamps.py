"""A store that is open belongs to the history of its log, however many coordinators come while nothing is written to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from orchestrator.model import Role, TaskId
from state import history
from state.errors import DirectoryFull
from state.log.group_store import Lease
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition
from state.store.rocksdb import peek
from tests.workers.test_restores_at_once import app_of, opened, restoring, until
from workers.prepare import Prepared, prepare
from workers.worker.worker import Worker

TASK, ENTRIES = TaskId(0, 0), 5


class Terms:
    """The coordinators of an app, one after the other."""

    def __init__(self, log: MemoryLog, prepared: Prepared) -> None:
        self.log, self.prepared = log, prepared
        self.lease: Lease | None = None

    async def next(self) -> int:
        self.lease = await self.log.acquire(self.prepared.app.id, "i1", "", self.lease)
        assert self.lease is not None
        changelogs = [self.prepared.changelog(TASK, "last")]
        await history.begin(self.log, self.lease, changelogs, f"of term {self.lease.term}")
        return self.lease.term


@pytest.fixture
async def terms() -> Terms:
    log = MemoryLog(markers=False)
    found = Terms(log, await prepare(log, app_of(1)))
    await found.next()
    changelog = found.prepared.changelog(TASK, "last")
    await log.append({changelog: [NewRecord(b"%d" % n, b"1", n) for n in range(ENTRIES)]})
    return found


def on_disk(worker: Worker) -> str | None:
    found = peek(worker.directory.table("0_0", "last"))
    return found.stamp[history.STAMP] if found.offset else None


async def test_one_that_nothing_is_written_to_is_stamped_with_each(tmp_path: Path, terms: Terms) -> None:
    async with restoring(tmp_path, terms.log, terms.prepared) as worker:
        run = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(run.stores) and run.position() == ENTRIES)
        for _ in range(history.KEPT + history.OLD):
            await worker.stamps.renew(last := await terms.next())
            left = on_disk(worker)  # by a kill -9
            assert left is None or last - int(left.removeprefix("of term ")) < history.KEPT / 2, "soon no entry has it"
        assert left is not None
        run.close()
        await run.closed()
        assert on_disk(worker) == f"of term {last}"
        again = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(again.stores))
        assert again.stores["last"].source == "disk"


async def test_one_that_is_ahead_of_a_term_is_not_stamped_before_it_is_written_to(tmp_path: Path, terms: Terms) -> None:
    """Where the log was restored from an older copy beneath it, it has what the log has not."""
    async with restoring(tmp_path, terms.log, terms.prepared) as worker:
        run = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(run.stores) and run.position() == ENTRIES)
        run.stores["last"].store.write({b"ahead": b"1"}, ENTRIES + 1)
        for _ in range(2 * history.OLD):
            await worker.stamps.renew(await terms.next())
        run.close()
        await run.closed()
        assert on_disk(worker) == "of term 1"


async def test_a_term_that_begins_while_a_store_is_opened_is_not_missed(tmp_path: Path, terms: Terms) -> None:
    renewed: list[int] = []

    async with restoring(tmp_path, terms.log, terms.prepared) as worker:
        starts = terms.log.starts

        async def later(partitions: Collection[Partition]) -> Mapping[Partition, int]:
            """A term begins, and is learned of, behind the look at the history with which stores are opened."""
            if not renewed:
                renewed.append(await terms.next())
                await worker.stamps.renew(renewed[0])
            return await starts(partitions)

        terms.log.starts = later  # type: ignore[method-assign, assignment]
        run = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(run.stores) and run.position() == ENTRIES)
        assert run.stores["last"].store.stamp()[history.STAMP] == f"of term {renewed[0]}"


async def test_one_that_cannot_be_written_costs_its_task_and_no_other_its_stamp(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    terms = Terms(log, await prepare(log, app_of(2)))
    await terms.next()
    for number in range(2):
        await log.append({terms.prepared.changelog(TaskId(0, number), "last"): [NewRecord(b"a", b"1", 1)]})
    async with restoring(tmp_path, log, terms.prepared) as worker:
        runs = [opened(worker, number, Role.STANDBY) for number in range(2)]
        await until(lambda: all(run.stores and run.position() == 1 for run in runs))

        def full(*_: object, **__: object) -> None:
            raise DirectoryFull("no space")

        runs[0].stores["last"].store.write = full  # type: ignore[method-assign]
        await worker.stamps.renew(term := await terms.next())
        assert runs[0].closing and not runs[1].closing
        assert runs[1].stores["last"].store.stamp()[history.STAMP] == f"of term {term}"
        del runs[0].stores["last"].store.write
        await runs[0].closed()
