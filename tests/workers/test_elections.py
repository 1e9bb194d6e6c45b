"""Brokers elect leaders, and a broker that lagged lacks records. What was lost is noticed, however long the log is again by then:
a store and a copy are restored, and an application whose input it is does not go on as if nothing had happened."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import OrchestratorError
from orchestrator.model import Role, TaskId
from state.changelog import LEADER_EPOCH, apply
from state.directory import StateDirectory
from state.errors import PositionOutOfRange
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TaskCommit
from tests.workers.test_restores_at_once import app_of, changelog, opened, restoring, until
from workers import topic_identities
from workers.errors import AppRefused
from workers.prepare import prepare
from workers.tasks.inputs import start_positions
from workers.tasks.stores import Opened, StoreOpener
from workers.worker import growth

TASK = TaskId(0, 0)


async def write(log: MemoryLog, partition: Partition, value: bytes, keys: range) -> int:
    """A record and a marker each; where the partition ends then."""
    for n in keys:
        await log.append({partition: [NewRecord(b"%d" % n, value, n)]})
    return (await log.ends([partition]))[partition]


async def follow(log: MemoryLog, found: Opened) -> None:
    """Bring the store up to its changelog."""
    reader = log.reader()
    reader.add(found.partition, found.store.offset)
    for part in await reader.poll():
        apply(found.store, part)


@pytest.mark.parametrize("lost", [0, 6], ids=["all", "less"])
async def test_a_store_on_disk_is_compared_with_what_the_leader_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    log = MemoryLog()
    prepared = await prepare(log, app_of(1))
    partition = changelog(prepared, 0)
    opener = StoreOpener(log, prepared, StateDirectory(tmp_path, "restored", "i1"), "")
    end = await write(log, partition, b"before", range(10))
    found = (await opener.open(TASK))["last"]
    await follow(log, found)
    assert (found.store.offset, found.store.stamp()[LEADER_EPOCH]) == (end, "0")
    found.store.close()

    log.elect(partition, end - lost)
    await write(log, partition, b"after", range(20, 40))
    with caplog.at_level(logging.WARNING):
        again = (await opener.open(TASK))["last"]
    assert (again.source, again.position) == (("empty", 0) if lost else ("disk", end))
    assert (f"has kept {end - lost}" in caplog.text) == bool(lost)
    assert ("it is wiped and restored; what those records changed is missing from the table" in caplog.text) == bool(
        lost
    )
    await follow(log, again)
    assert again.store.stamp()[LEADER_EPOCH] == "1"
    assert (again.store.get(b"9") is None) == bool(lost)
    again.store.close()


@pytest.mark.parametrize("elects", [True, False], ids=["kafka", "embedded"])
async def test_a_store_that_is_ahead_says_what_its_table_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, elects: bool
) -> None:
    """Where the log has elections, positions stay where they were; those of an embedded log go back with the changelog."""
    log = MemoryLog(markers=elects)
    prepared = await prepare(log, app_of(1))
    partition = changelog(prepared, 0)
    end = await write(log, partition, b"before", range(10))
    opener = StoreOpener(log, prepared, StateDirectory(tmp_path, "restored", "i1"), "")
    found = (await opener.open(TASK))["last"]
    await follow(log, found)
    found.store.write({}, end + 5)
    found.store.close()
    with caplog.at_level(logging.WARNING):
        (await opener.open(TASK))["last"].store.close()
    (line,) = caplog.messages
    ahead = f"it stands at {end + 5}, past the end {end} of its changelog: the log lost records it has; it is wiped and restored"
    short = "; what those records changed is missing from the table from now on, unless the positions of its inputs went back with them: "
    assert line.startswith(f"0_0, table last: {ahead}{short if elects else ''}"), line
    assert ("`orchestrator audit` shows what is missing" in line) == elects


async def test_a_copy_that_follows_is_restored_and_the_others_go_on(tmp_path: Path) -> None:
    log = MemoryLog()
    prepared = await prepare(log, app_of(2))
    first, second = changelog(prepared, 0), changelog(prepared, 1)
    end = await write(log, first, b"1", range(20))
    assert await write(log, second, b"1", range(20)) == end
    async with restoring(tmp_path, log, prepared) as worker:
        cut, other = opened(worker, 0, Role.STANDBY), opened(worker, 1, Role.STANDBY)
        await until(lambda: all(run.by_changelog and run.position() == end for run in (cut, other)))
        log.elect(first, end - 10)
        log.elect(second, end)
        ends = [await write(log, partition, b"2", range(100, 130)) for partition in (first, second)]
        await until(lambda: cut.id not in worker.runs)
        await until(lambda: other.position() == ends[1])
        await cut.closed()
        again = opened(worker, 0, Role.STANDBY)
        await until(lambda: bool(again.by_changelog) and again.position() == ends[0])
        assert again.stores["last"].store.get(b"17") is None, "what the log has lost"
        assert again.stores["last"].store.get(b"129") == b"2"


async def test_a_reader_notices_before_it_gives_what_follows() -> None:
    log = MemoryLog()
    partition = changelog(await prepare(log, app_of(1)), 0)
    end = await write(log, partition, b"1", range(10))
    reader = log.reader()
    reader.add(partition, 0)
    assert (await reader.poll())[0].next_position == end
    reader.drop(partition)
    log.elect(partition, end - 2)
    await write(log, partition, b"2", range(5))
    reader.add(partition, end)
    with pytest.raises(PositionOutOfRange, match=f"behind {end - 2}, where the records end that the log has kept"):
        await reader.poll()


@pytest.mark.parametrize("lost", [0, 8])
async def test_an_input_that_has_lost_what_was_processed_stops_its_task(lost: int) -> None:
    log, app = MemoryLog(), app_of(1)
    prepared = await prepare(log, app)
    numbers = Partition("numbers", 0)
    end = await write(log, numbers, b"1", range(10))
    log.put_positions(app.id, [TaskCommit("0_0", 1, {}, {numbers: end})])
    log.elect(numbers, end - lost)
    await write(log, numbers, b"1", range(10))
    going_on = start_positions(log, app.id, prepared, TASK, [numbers])
    if not lost:
        assert await going_on == ({numbers: end}, False)
    else:
        with pytest.raises(OrchestratorError, match=f"up to {end}, the log has kept what is before {end - lost};"):
            await going_on


async def with_lost_inputs() -> tuple[MemoryLog, Any, int]:
    """An application that has processed all of three partitions, two of which have lost 8 offsets since."""
    log, app = MemoryLog(), app_of(3)
    prepared = await prepare(log, app)
    await topic_identities.keep(log, prepared)
    inputs = [Partition("numbers", number) for number in range(3)]
    ends = [await write(log, one, b"1", range(10)) for one in inputs]
    log.put_positions(app.id, [TaskCommit("0_0", 1, {}, dict(zip(inputs, ends, strict=True)))])
    await topic_identities.keep_positions(log, prepared)
    await topic_identities.check(log, app)
    for one in inputs[:2]:
        log.elect(one, ends[0] - 8)
        await write(log, one, b"1", range(10))
    return log, prepared, ends[0]


async def test_a_start_names_all_that_an_input_has_lost_also_of_what_was_accepted() -> None:
    """One partition of several was named; and once the topic was accepted, with the position in that one set, the next start passed."""
    log, prepared, end = await with_lost_inputs()
    kept = f"processed up to {end}, the log has kept what is before {end - 8};"
    text = (
        f"topic numbers lost records: of numbers-0, which was {kept} of numbers-1, which was {kept} .*"
        f"--to-offset {end - 8} for numbers-0, --to-offset {end - 8} for numbers-1"
    )
    with pytest.raises(AppRefused, match=text):
        await topic_identities.check(log, prepared.app)
    assert await topic_identities.accept(log, prepared.app.id, "numbers")
    with pytest.raises(AppRefused, match=text):
        await topic_identities.check(log, prepared.app)


async def test_a_worker_ends_with_what_its_input_has_lost() -> None:
    """It named another log, and positions to start again from, as if there were any."""
    log, prepared, end = await with_lost_inputs()
    error = PositionOutOfRange("position 20 of numbers-1 lies past its end 12", Partition("numbers", 1), 0, end - 8)
    found = await growth.explained(SimpleNamespace(prepared=prepared, log=log), error)  # type: ignore[arg-type]
    assert isinstance(found, OrchestratorError), found
    kept = f"processed up to {end}, the log has kept what is before {end - 8};"
    assert f"of numbers-0, which was {kept} of numbers-1, which was {kept}" in str(found)
    assert "`orchestrator topics accept`, or `orchestrator reset`" in str(found)
    log.put_positions(prepared.app.id, [TaskCommit("0_0", 1, {}, {Partition("numbers", n): 0 for n in range(3)})])
    assert await growth.explained(SimpleNamespace(prepared=prepared, log=log), error) is error  # type: ignore[arg-type]
