"""What the log keeps of halts: a skip stays until it is committed, also behind a later halt; changes are compare-and-set."""

from __future__ import annotations

from pipeline.errors import DueCallId
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TaskCommit, TopicSpec
from workers.tasks import halts
from workers.tasks.halts import HALTS, Halt

APP, TASK = "x", "0_0"
FIRST, SECOND, THIRD = (Halt("in", 0, offset, "it failed", offset) for offset in (3, 5, 7))


async def raw(log: MemoryLog) -> bytes:
    found = await log.metadata(APP, HALTS, TASK)
    assert found is not None
    return found


async def kept(log: MemoryLog) -> Halt | None:
    return await halts.read(log, APP, TASK)


async def a_skip_and_a_later_halt() -> MemoryLog:
    log = MemoryLog()
    await halts.write(log, APP, TASK, FIRST)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    await halts.write(log, APP, TASK, SECOND)
    return log


async def test_a_later_halt_remembers_the_skip_before_it() -> None:
    log = await a_skip_and_a_later_halt()
    found = await kept(log)
    assert found is not None and not found.skip
    assert found.offset == 5 and found.left_out == (("in", 0, 3),)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    await halts.write(log, APP, TASK, THIRD)
    found = await kept(log)
    assert found is not None and found.left_out == (("in", 0, 3), ("in", 0, 5))


async def test_trying_the_record_again_keeps_the_skip_before_it() -> None:
    log = await a_skip_and_a_later_halt()
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=False)
    found = await kept(log)
    assert found is not None and found.skip and found.left_out == (("in", 0, 3),)


async def test_a_committed_skip_is_forgotten() -> None:
    log = MemoryLog()
    await log.create_topic(TopicSpec("in", 1))
    await log.append({Partition("in", 0): [NewRecord(b"k", b"v", 0) for _ in range(6)]})
    await halts.write(log, APP, TASK, FIRST)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    await log.open_writer(APP, "w")
    lease = await log.acquire(APP, "i1", "", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord(TASK, 1, "i1", "w", 1)])
    await log.commit(APP, "w", [TaskCommit(TASK, 1, {}, {Partition("in", 0): 4})])
    await halts.write(log, APP, TASK, SECOND)
    found = await kept(log)
    assert found is not None and found.left_out == ()


async def test_a_task_that_is_halted_anew_stays_halted() -> None:
    log = MemoryLog()
    await halts.write(log, APP, TASK, FIRST)
    seen = await raw(log)
    await halts.write(log, APP, TASK, SECOND)
    assert not await halts.take_back(log, APP, TASK, seen, skip=False)
    assert not await halts.take_back(log, APP, TASK, seen, skip=True)
    assert await kept(log) == SECOND
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=False)
    assert await kept(log) is None


def test_a_halt_of_an_earlier_release_opens() -> None:
    old = b'{"topic":"in","partition":0,"offset":3,"error":"it failed","at_ms":3,"skip":true}'
    assert halts.decode(old).left_out == (("in", 0, 3),)


async def test_a_call_that_began_before_its_record_was_to_be_skipped_does_not_halt_the_task_again() -> None:
    log = MemoryLog()
    assert await halts.write(log, APP, TASK, FIRST)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    before = await raw(log)
    assert not await halts.write(log, APP, TASK, FIRST)
    assert await raw(log) == before
    assert await halts.write(log, APP, TASK, SECOND)
    assert not await halts.write(log, APP, TASK, FIRST)  # nor does it take the place of the later halt


CALL = DueCallId("gone", "silent", 5, b"ann", 1, (5, 0, b"ann"), None)
CHAINED = DueCallId("gone", "silent", 4, b"ann", 1, None, ("in", 0, 3))
DUE, LATER_DUE = (Halt("silent", 0, -1, "it failed", 3, due=call) for call in (CALL, CHAINED))


async def test_a_call_that_is_skipped_is_remembered_behind_later_halts() -> None:
    log = MemoryLog()
    assert await halts.write(log, APP, TASK, DUE)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    found = await kept(log)
    assert found is not None and found.due_left_out == (CALL,) and found.left_out == ()
    assert not await halts.write(log, APP, TASK, DUE)
    assert await halts.write(log, APP, TASK, LATER_DUE)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    assert await halts.write(log, APP, TASK, FIRST)
    found = await kept(log)
    assert found is not None and not found.skip
    assert found.due_left_out == (CALL, CHAINED) and found.left_out == ()
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=False)
    found = await kept(log)
    assert found is not None and found.skip and found.due_left_out == (CALL, CHAINED) and found.left_out == ()


async def test_a_call_that_counts_with_a_committed_record_is_forgotten() -> None:
    log = MemoryLog()
    await log.create_topic(TopicSpec("in", 1))
    await log.append({Partition("in", 0): [NewRecord(b"k", b"v", 0) for _ in range(6)]})
    await halts.write(log, APP, TASK, LATER_DUE)
    assert await halts.take_back(log, APP, TASK, await raw(log), skip=True)
    await log.open_writer(APP, "w")
    lease = await log.acquire(APP, "i1", "", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord(TASK, 1, "i1", "w", 1)])
    await log.commit(APP, "w", [TaskCommit(TASK, 1, {}, {Partition("in", 0): 4})])
    await halts.write(log, APP, TASK, SECOND)
    found = await kept(log)
    assert found is not None and found.due_left_out == ()


def test_a_halt_at_a_call_moves_with_the_records_that_it_names() -> None:
    halt = Halt("silent", 0, -1, "it failed", 3, skips=(("in", 0, 5),), due=CHAINED, due_skips=(CALL,))
    assert set(halt.records) == {("in", 0, 3), ("in", 0, 5)}
    moved = halts.decode(halts.encode(halt)).with_records(lambda place: (place[0], place[1], place[2] + 10))
    assert moved.skips == (("in", 0, 15),) and moved.place == halt.place and moved.due_skips == (CALL,)
    assert moved.due is not None and moved.due.record == ("in", 0, 13)
