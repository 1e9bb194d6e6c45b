"""What the coordinator's instance removes from the log: never what somebody has yet to read, and only where it is worth it."""

from __future__ import annotations

from orchestrator import App, Record, Table
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, Retention, TaskCommit
from workers.instance.upkeep import AT_MOST_EVERY, LogUpkeep
from workers.prepare import prepare

INPUT, CHANGELOG = Partition("in", 0), Partition("counting-counts-changelog", 0)


def counting(name: str) -> App:
    app = App(name, partitions=1)
    source, counts = app.topic("in", key=str, value=int), app.table("counts", key=str, value=int, default=int)

    @app.processor(source, counts)
    def count(record: Record[str, int], counts: Table[str, int]) -> None:
        counts[record.key] += 1

    return app


async def read_up_to(log: MemoryLog, application: str, position: int) -> None:
    """As its worker commits it."""
    lease = await log.acquire(application, "i1", "", await log.lease(application))
    assert lease is not None
    await log.open_writer(application, f"{application}-w")
    epoch = len(await log.owners(application)) + 1
    await log.record_owners(lease, [OwnerRecord("0_0", epoch, "m", f"{application}-w", lease.term)])
    await log.commit(application, f"{application}-w", [TaskCommit("0_0", epoch, {}, {INPUT: position})])


async def a_log(*applications: str) -> MemoryLog:
    log = MemoryLog(clock_ms=lambda: 10_000, markers=False)
    for name in applications:
        await prepare(log, counting(name))
    for _ in range(10):
        await log.append({INPUT: [NewRecord(b"k", bytes(8), 0)]})
    return log


async def test_what_an_application_has_yet_to_read_stays() -> None:
    log = await a_log("counting", "other")
    upkeep = LogUpkeep(log, "counting")
    await log.set_retention("in", Retention(bytes=0))
    assert await upkeep.round() == 0  # nobody has committed anything
    await read_up_to(log, "counting", 8)
    assert await upkeep.round() == 0
    await read_up_to(log, "other", 3)
    assert await upkeep.round() == 3
    assert await log.starts([INPUT]) == {INPUT: 3}
    await log.set_retention("in", Retention(bytes=0, forced=True))
    assert await upkeep.round() == 6  # the newest batch stays
    assert await log.starts([INPUT]) == {INPUT: 9}


async def test_without_a_retention_everything_stays() -> None:
    log = await a_log("counting")
    await read_up_to(log, "counting", 10)
    assert await LogUpkeep(log, "counting").round() == 0
    assert await log.starts([INPUT]) == {INPUT: 0}


async def test_a_changelog_is_compacted_once_half_of_it_is_new() -> None:
    log = await a_log("counting")
    upkeep = LogUpkeep(log, "counting")

    async def write(keys: range) -> None:
        await log.append({CHANGELOG: [NewRecord(b"%d" % key, b"v", 0) for key in keys]})

    await write(range(10))
    await write(range(10))
    assert await upkeep.round() == 10
    await write(range(5))
    assert await upkeep.round() == 0
    await write(range(5, 11))
    assert await upkeep.round() == 10
    await write(range(1))
    for _ in range(AT_MOST_EVERY - 1):
        assert await upkeep.round() == 0
    assert await upkeep.round() == 1  # once a day, whatever it is
    for _ in range(AT_MOST_EVERY + 1):
        assert await upkeep.round() == 0  # where nothing is new, never
