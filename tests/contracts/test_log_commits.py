"""What every log does with transactions: commits, fences, positions."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest

from state.errors import (
    Fenced,
    InvalidRecord,
    LeaseLost,
    NotOpened,
    OutcomeUnknown,
    RecordTooLarge,
    Refused,
    StateError,
    UnknownTopic,
)
from state.log.group_store import AppMetadata, OwnerRecord
from state.log.protocol import AT_LEAST_ONCE, EXACTLY_ONCE, GroupLog, Guarantee, NewRecord, Partition, TaskCommit
from tests.contracts.logs import (
    APP,
    C0,
    MAX_MESSAGE_BYTES,
    OPERATION,
    P0,
    P1,
    P2,
    SCHEMA,
    Place,
    granted,
    lease_of,
    owned,
    records,
    until,
    values,
)

INPUTS = [P0, P1, P2]


class Part(dict[Partition, list[NewRecord]]):
    """Some records, of which it is known whether they are still held."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


async def test_a_commit_writes_records_and_positions_of_all_its_tasks(log: GroupLog) -> None:
    await owned(log, "0_0", "0_1")
    behind = await log.commit(
        APP,
        "w-1",
        [
            TaskCommit("0_0", 1, {P2: records("from 0"), C0: records("c")}, {P0: 10}),
            TaskCommit("0_1", 1, {P2: records("from 1")}, {P1: 20}),
        ],
    )
    assert behind == {P2: 2, C0: 1}
    ends = await log.ends([P2, C0], settled=True)
    assert all(behind[one] <= ends[one] for one in behind)
    assert await values(log, P2) == ["from 0", "from 1"]
    assert await values(log, C0) == ["c"]
    assert await log.positions(APP, INPUTS) == {P0: 10, P1: 20}
    assert await log.positions(APP, INPUTS, settled=False) == {P0: 10, P1: 20}
    assert await log.positions("another", INPUTS) == {}
    assert await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {}, {P0: 11})]) == {}
    assert await log.positions(APP, INPUTS) == {P0: 11, P1: 20}
    assert await log.commit(APP, "w-1", []) == {}


async def test_what_was_committed_is_there_for_another_process_at_once(log: GroupLog, place: Place) -> None:
    """The release of a task and its next owner: settled ends, and positions of named partitions."""
    await owned(log, "0_0")
    other = await place.open()
    for number in range(10):
        behind = await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {C0: records(str(number))}, {P0: number + 1})])
        assert await other.positions(APP, [P0]) == {P0: number + 1}
        assert (await other.written([C0]))[C0] >= behind[C0]
        assert (await other.ends([C0], settled=True))[C0] >= behind[C0]
        assert await values(other, C0, behind[C0] - 1) == [str(number)]


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
async def test_a_task_that_was_granted_can_be_committed_by_another_process_at_once(
    log: GroupLog, place: Place, guarantee: Guarantee
) -> None:
    """A coordinator's grant may come to a worker before the owner record does; its first commit was refused, and the task
    restored anew."""
    lease, other = await lease_of(log), await place.open()
    await other.open_writer(APP, "w-2")
    for epoch in range(1, 21):
        await log.record_owners(lease, [OwnerRecord("0_0", epoch, "m", "w-2", lease.term)])
        await other.commit(APP, "w-2", [TaskCommit("0_0", epoch, {}, {P0: epoch})], guarantee=guarantee)
    assert await log.positions(APP, [P0]) == {P0: 20}
    with pytest.raises(Refused):
        await other.commit(APP, "w-2", [TaskCommit("0_0", 21, {}, {P0: 21})], guarantee=guarantee)


async def test_only_the_positions_asked_for_are_found(log: GroupLog) -> None:
    assert await log.seed_positions(await lease_of(log), {P0: 5, P1: 0}, {})
    assert await log.positions(APP, [P1, P2]) == {P1: 0}
    assert await log.positions(APP, []) == {}
    assert await log.set_elsewhere(APP, [P0, P1, P2]) == {}  # they are the application's own


async def test_the_time_of_a_commit_is_there_for_another_process(log: GroupLog, place: Place) -> None:
    """The owner after a crash asks when the one before committed last."""
    await owned(log, "0_0", "0_1")
    other = await place.open()
    tasks = [TaskCommit("0_0", 1, {}, {P0: 1}, 1_000), TaskCommit("0_1", 1, {}, {P1: 1})]
    await log.commit(APP, "w-1", tasks)
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P2: records("moves nothing")}, {}, 2_000)])
    assert await log.set_elsewhere(APP, INPUTS) == {}  # with a time and without
    assert await other.committed_ms(APP, INPUTS) == {P0: 1_000}
    assert await other.committed_ms("another", INPUTS) == {}
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {}, {P0: 2}, 3_000)])
    assert await other.committed_ms(APP, INPUTS) == {P0: 3_000}


async def test_a_commit_with_an_unknown_topic_writes_nothing(log: GroupLog) -> None:
    await owned(log, "0_0")
    nowhere = {P0: records("a"), Partition("nowhere", 0): records("b")}
    with pytest.raises(UnknownTopic):
        await log.commit(APP, "w-1", [TaskCommit("0_0", 1, nowhere, {P1: 5})])
    assert await values(log, P0) == []
    assert await log.positions(APP, INPUTS) == {}


async def test_a_record_too_large_is_named_and_the_writer_goes_on(log: GroupLog) -> None:
    await owned(log, "0_0", "0_1")
    fine = TaskCommit("0_0", 1, {P0: records("a"), P1: records("b")}, {P2: 1})
    big = TaskCommit("0_1", 1, {P0: records("c", "x" * MAX_MESSAGE_BYTES)}, {P2: 2})
    with pytest.raises(RecordTooLarge, match=r"0_1: .* too large for payments-0") as caught:
        await log.commit(APP, "w-1", [fine, big])
    assert (caught.value.scope, caught.value.partition, caught.value.index) == ("0_1", P0, 1)
    assert await values(log, P0) == await values(log, P1) == []
    assert await log.positions(APP, INPUTS) == {}
    await log.commit(APP, "w-1", [fine])
    assert await values(log, P0) == ["a"]


async def test_a_record_that_its_topic_cannot_hold_is_refused_and_the_writer_goes_on(log: GroupLog) -> None:
    await owned(log, "0_0", "0_1")
    fine = TaskCommit("0_1", 1, {C0: records("fine")}, {})
    with pytest.raises(InvalidRecord, match=r"0_0: .* counts-changelog-0") as caught:
        await log.commit(
            APP, "w-1", [fine, TaskCommit("0_0", 1, {C0: [NewRecord(None, b"1", 1)], P0: records("a")}, {P1: 1})]
        )
    assert (caught.value.scope, caught.value.partition, caught.value.index) == ("0_0", C0, 0)
    assert await values(log, P0) == []
    assert await log.positions(APP, INPUTS) == {}
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("b")}, {P1: 1})])
    assert await values(log, P0) == ["b"]


# ---------------------------------------------------------------------- owners


async def test_a_refused_commit_names_all_lost_scopes_and_the_others_can_go_on(log: GroupLog) -> None:
    await owned(log, "0_0", "0_1", "0_2", "0_3")
    await granted(log, "0_1", by="w-2", epoch=2)
    await granted(log, "0_3", epoch=7)
    await log.append({P0: records("before")})
    tasks = [TaskCommit(f"0_{number}", 1, {P0: records(str(number))}, {P1: number}) for number in range(5)]
    with pytest.raises(Refused, match=r"0_1, 0_3, 0_4") as caught:
        await log.commit(APP, "w-1", tasks)
    assert caught.value.scopes == {"0_1", "0_3", "0_4"}
    assert await values(log, P0) == ["before"]
    assert await log.positions(APP, INPUTS) == {}
    await log.commit(APP, "w-1", [task for task in tasks if task.scope not in caught.value.scopes])
    assert await values(log, P0) == ["before", "0", "2"]
    assert await log.positions(APP, INPUTS) == {P1: 2}


async def test_a_scope_without_an_owner_is_written_by_nobody(log: GroupLog) -> None:
    await log.open_writer(APP, "w-1")
    await granted(log, "0_0", by="")
    with pytest.raises(Refused):
        await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("a")})])
    assert await values(log, P0) == []


async def test_owners_of_another_application_do_not_count(log: GroupLog) -> None:
    await owned(log, "0_0")
    await log.open_writer("another-app", "w-1")
    with pytest.raises(Refused):
        await log.commit("another-app", "w-1", [TaskCommit("0_0", 1, {P0: records("a")})])


async def test_an_older_epoch_is_refused_after_a_new_grant(log: GroupLog) -> None:
    await owned(log, "0_0", epoch=1)
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("a")})])
    await granted(log, "0_0", epoch=2)
    with pytest.raises(Refused):
        await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("b")})])
    await log.commit(APP, "w-1", [TaskCommit("0_0", 2, {P0: records("c")})])
    assert await values(log, P0) == ["a", "c"]


async def test_a_transactional_id_is_opened_before_it_commits(log: GroupLog, place: Place) -> None:
    await granted(log, "0_0")
    task = TaskCommit("0_0", 1, {P0: records("a")})
    for transactional_id in ("", "w-1"):
        with pytest.raises(NotOpened, match="was not opened by this process"):
            await log.commit(APP, transactional_id, [task])
    with pytest.raises(StateError, match="needs a name"):
        await log.open_writer(APP, "")
    assert await values(log, P0) == []
    await log.open_writer(APP, "w-1")
    await log.commit(APP, "w-1", [task])
    assert await values(log, P0) == ["a"]


# ---------------------------------------------------------------------- fences


async def test_a_fenced_writer_commits_nothing_ever_again(log: GroupLog) -> None:
    lease = await owned(log, "0_0", "0_1")
    await owned(log, "0_2", by="w-2")
    assert await log.fence(lease, ["w-1"]) == {"w-1": {"0_0", "0_1"}}
    owners = await log.owners(APP)
    assert {scope: (one.epoch, one.transactional_id, one.member) for scope, one in owners.items()} == {
        "0_0": (2, "", "member"),
        "0_1": (2, "", "member"),
        "0_2": (1, "w-2", "member"),
    }
    for epoch in (1, 2):
        with pytest.raises(Fenced):
            await log.commit(APP, "w-1", [TaskCommit("0_0", epoch, {P0: records("a")})])
    assert await values(log, P0) == []
    assert await log.fence(lease, ["w-1"]) == {"w-1": frozenset()}
    await granted(log, "0_0", epoch=3)  # by mistake: the fence is for good
    with pytest.raises(Fenced):
        await log.commit(APP, "w-1", [TaskCommit("0_0", 3, {P0: records("a")})])
    await log.commit(APP, "w-2", [TaskCommit("0_2", 1, {P0: records("fine")})])


async def test_several_are_fenced_at_once(log: GroupLog) -> None:
    lease = await owned(log, "0_0")
    await owned(log, "0_1", by="w-2")
    await owned(log, "0_2", by="w-3")
    assert await log.fence(lease, ["w-1", "w-2", "w-9"]) == {"w-1": {"0_0"}, "w-2": {"0_1"}, "w-9": frozenset()}
    for by, scope in (("w-1", "0_0"), ("w-2", "0_1")):
        with pytest.raises(Fenced):
            await log.commit(APP, by, [TaskCommit(scope, 1, {P0: records("a")})])
    await log.commit(APP, "w-3", [TaskCommit("0_2", 1, {P0: records("fine")})])
    assert await log.fence(lease, []) == {}


async def test_a_writer_that_has_ended_its_commits_has_left_nothing_open(log: GroupLog) -> None:
    lease = await owned(log, "0_0")
    assert await log.end_left_open(lease, {"w-1": -1, "w-9": 5}) == ({}, [])
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("a")}, {})])
    assert await log.end_left_open(lease, {"w-1": -1, "w-9": 5}) == ({}, [])
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {P0: records("b")}, {})])


async def test_what_is_fenced_before_it_was_opened_cannot_be_opened(log: GroupLog, place: Place) -> None:
    lease = await granted(log)
    assert await log.fence(lease, ["w-9"]) == {"w-9": frozenset()}
    await granted(log, "0_0", by="w-9")
    other = await place.open()
    with pytest.raises(Fenced, match="w-9"):
        await other.open_writer(APP, "w-9")
    with pytest.raises((NotOpened, Fenced)):
        await other.commit(APP, "w-9", [TaskCommit("0_0", 1, {P0: records("a")})])
    await other.open_writer("another-app", "w-9")


async def test_no_name_no_fence(log: GroupLog) -> None:
    lease = await granted(log, "0_0", by="")
    with pytest.raises(StateError):
        await log.fence(lease, ["w-1", ""])
    assert (await log.owners(APP))["0_0"].epoch == 1
    await owned(log, "0_1")
    await log.commit(APP, "w-1", [TaskCommit("0_1", 1, {P0: records("not fenced")})])


# ---------------------------------------------------------------------- starting positions


async def test_positions_are_seeded_once(log: GroupLog) -> None:
    lease = await lease_of(log)
    assert await log.seed_positions(lease, {P0: 5, P1: 6}, {C0: records("final")})
    assert not await log.seed_positions(lease, {P0: 7, P2: 1}, {C0: records("again")})
    assert await log.positions(APP, INPUTS) == {P0: 5, P1: 6}
    assert await values(log, C0) == ["final"]
    other = await log.acquire("another", "coordinator", "", None)
    assert other is not None
    assert await log.seed_positions(other, {P0: 7}, {})
    assert await log.positions("another", INPUTS) == {P0: 7}


async def test_records_are_seeded_a_part_at_a_time(log: GroupLog) -> None:
    lease = await lease_of(log)
    alive: weakref.WeakSet[Part] = weakref.WeakSet()
    most = 0

    def parts() -> Iterator[Part]:
        nonlocal most
        for number in range(6):
            part = Part({C0 if number % 2 else P2: records(f"part {number}", key=f"k{number}")})
            alive.add(part)
            most = max(most, len(alive))
            yield part

    assert await log.seed_positions(lease, {P0: 5}, {P2: records("before")}, parts=parts)
    assert await values(log, P2) == ["before", "part 0", "part 2", "part 4"]
    assert await values(log, C0) == ["part 1", "part 3", "part 5"]
    assert most <= 3  # the one that is written, the next one, and one to which a thread still refers
    assert not await log.seed_positions(lease, {P0: 7}, {}, parts=parts)
    assert len(await values(log, C0)) == 3
    assert await log.seed_positions(lease, {P1: 6}, {}, parts=lambda: [{C0: records("again")}])
    assert await log.positions(APP, INPUTS) == {P0: 5, P1: 6}


async def test_parts_that_fail_leave_nothing(log: GroupLog) -> None:
    lease = await lease_of(log)

    def parts() -> Iterator[Part]:
        yield Part({C0: records("first")})
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await log.seed_positions(lease, {P0: 5}, {P2: records("before")}, parts=parts)
    too_large = [{C0: records("fits")}, {C0: [NewRecord(b"k", b"x" * 2 * MAX_MESSAGE_BYTES, 1)]}]
    with pytest.raises(RecordTooLarge):
        await log.seed_positions(lease, {P0: 5}, {}, parts=lambda: too_large)
    assert await log.positions(APP, INPUTS) == {}
    assert await log.seed_positions(lease, {P0: 6}, {}, parts=lambda: [{C0: records("then")}])
    assert await values(log, C0) == ["then"]
    assert await values(log, P2) == []


async def test_metadata_is_seeded_with_positions_or_not_at_all(log: GroupLog) -> None:
    lease = await lease_of(log)

    def operations(*values: tuple[str, bytes]) -> list[AppMetadata]:
        return [AppMetadata(APP, OPERATION, key, value) for key, value in values]

    assert await log.seed_positions(lease, {P0: 5}, {}, metadata=operations(("a", b"1"), ("b", b"2")))
    assert await log.metadata_of(APP, OPERATION) == {"a": b"1", "b": b"2"}
    assert not await log.seed_positions(lease, {P0: 5}, {}, metadata=operations(("a", b"3")))
    with pytest.raises(StateError, match="schema"):
        await log.seed_positions(lease, {P1: 5}, {}, metadata=[AppMetadata(APP, SCHEMA, "a", b"1")])
    assert await log.metadata_of(APP, OPERATION) == {"a": b"1", "b": b"2"}
    assert await log.positions(APP, INPUTS) == {P0: 5}


async def test_positions_are_not_seeded_over_a_commit(log: GroupLog) -> None:
    lease = await owned(log, "0_0")
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {}, {P0: 3})])
    assert not await log.seed_positions(lease, {P0: 1, P1: 6}, {C0: records("final")})
    assert await log.positions(APP, INPUTS) == {P0: 3}
    assert await values(log, C0) == []


async def test_nothing_is_seeded_without_the_lease(log: GroupLog) -> None:
    old = await lease_of(log)
    assert await log.acquire(APP, "new", "a:2", old) is not None
    with pytest.raises(LeaseLost, match="new"):
        await log.seed_positions(old, {P0: 5}, {C0: records("late")}, metadata=[AppMetadata(APP, OPERATION, "a", b"1")])
    assert await log.positions(APP, INPUTS) == {}
    assert await values(log, C0) == []
    assert await log.metadata_of(APP, OPERATION) == {}


async def test_positions_are_forgotten_where_they_are_named(log: GroupLog, place: Place) -> None:
    lease = await owned(log, "0_0")
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {}, {P0: 3, P1: 4}, at_ms=5)])
    other = await log.acquire("another", "coordinator", "", None)
    assert other is not None and await log.seed_positions(other, {P0: 7}, {})
    await log.forget_positions(lease, [P0, P2])
    assert await log.positions(APP, INPUTS) == {P1: 4}
    assert await log.committed_ms(APP, INPUTS) == {P1: 5}
    assert await log.positions("another", INPUTS) == {P0: 7}
    lease = await log.renew(lease)
    assert await log.seed_positions(lease, {P0: 1}, {}), "as if it had never been read"
    assert await (await place.open()).positions(APP, INPUTS) == {P0: 1, P1: 4}


async def test_no_position_is_forgotten_without_the_lease(log: GroupLog) -> None:
    old = await owned(log, "0_0")
    await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {}, {P0: 3})])
    assert await log.acquire(APP, "new", "a:2", await log.lease(APP)) is not None
    with pytest.raises(LeaseLost, match="new"):
        await log.forget_positions(old, [P0])
    assert await log.positions(APP, INPUTS) == {P0: 3}


async def test_a_group_that_never_committed_has_no_positions_to_forget(log: GroupLog) -> None:
    await log.forget_positions(await lease_of(log), INPUTS)
    assert await log.positions(APP, INPUTS) == {}


# ---------------------------------------------------------------------- at least once


async def test_a_commit_at_least_once_is_there_whole_for_another_process(log: GroupLog, place: Place) -> None:
    """What the next owner asks for: settled ends, what is written, stable positions. Outputs can be read at once."""
    await owned(log, "0_0", "0_1")
    other = await place.open()
    for number in range(5):
        tasks = [
            TaskCommit("0_0", 1, {P2: records(f"a{number}"), C0: records(str(number))}, {P0: number + 1}),
            TaskCommit("0_1", 1, {P2: records(f"b{number}")}, {P1: number + 1}),
        ]
        behind = await log.commit(APP, "w-1", tasks, guarantee=AT_LEAST_ONCE)
        assert behind.keys() == {P2, C0}
        assert await other.positions(APP, INPUTS) == {P0: number + 1, P1: number + 1}
        assert (await other.written([C0]))[C0] >= behind[C0]
        assert (await other.ends([C0], settled=True))[C0] >= behind[C0]
        assert await values(other, C0, behind[C0] - 1) == [str(number)]
    assert await values(other, P2) == [f"{task}{number}" for number in range(5) for task in "ab"]
    assert await log.commit(APP, "w-1", [TaskCommit("0_0", 1, {}, {P0: 9})], guarantee=AT_LEAST_ONCE) == {}
    assert await log.positions(APP, [P0]) == {P0: 9}
    assert await log.commit(APP, "w-1", [], guarantee=AT_LEAST_ONCE) == {}


async def test_guarantees_may_follow_each_other(log: GroupLog) -> None:
    await owned(log, "0_0")
    last = 0
    for number in range(6):
        guarantee = AT_LEAST_ONCE if number % 3 else EXACTLY_ONCE
        task = TaskCommit("0_0", 1, {C0: records(str(number), key=f"k{number}")}, {P0: number + 1})
        behind = await log.commit(APP, "w-1", [task], guarantee=guarantee)
        assert behind[C0] > last
        last = behind[C0]
        assert await log.positions(APP, [P0]) == {P0: number + 1}
    assert await values(log, C0) == [str(number) for number in range(6)]


async def test_what_refuses_a_commit_refuses_one_at_least_once(log: GroupLog, place: Place) -> None:
    lease = await owned(log, "0_0", "0_1")
    await granted(log, "0_1", by="w-2", epoch=2)
    mine, lost = (TaskCommit(scope, 1, {P0: records(scope)}, {P1: 1}) for scope in ("0_0", "0_1"))
    with pytest.raises(Refused) as caught:
        await log.commit(APP, "w-1", [mine, lost], guarantee=AT_LEAST_ONCE)
    assert caught.value.scopes == {"0_1"}
    big = TaskCommit("0_0", 1, {P0: records("c", "x" * MAX_MESSAGE_BYTES)}, {P2: 2})
    with pytest.raises(RecordTooLarge, match="0_0"):
        await log.commit(APP, "w-1", [big], guarantee=AT_LEAST_ONCE)
    with pytest.raises(NotOpened):
        await log.commit(APP, "w-9", [mine], guarantee=AT_LEAST_ONCE)
    assert await values(log, P0) == []
    assert await log.positions(APP, INPUTS) == {}
    await log.commit(APP, "w-1", [mine], guarantee=AT_LEAST_ONCE)
    await log.fence(lease, ["w-1"])

    async def refused() -> bool:
        try:
            await log.commit(APP, "w-1", [mine], guarantee=AT_LEAST_ONCE)
        except Fenced:
            return True
        return False

    await until("the fence", refused)


async def test_who_may_write_no_more_writes_nothing_where_nothing_fences(log: GroupLog) -> None:
    """And can go on once it may: with another commit, as the outcome of the first is for its caller to find out."""
    await owned(log, "0_0")
    task = TaskCommit("0_0", 1, {C0: records("a")}, {P0: 1})
    assert log.fences(EXACTLY_ONCE)
    if log.fences(AT_LEAST_ONCE):
        assert await log.commit(APP, "w-1", [task], guarantee=AT_LEAST_ONCE, may_write=lambda: False) == {C0: 1}
        return
    with pytest.raises(OutcomeUnknown, match="cut short"):
        await log.commit(APP, "w-1", [task], guarantee=AT_LEAST_ONCE, may_write=lambda: False)
    assert await values(log, C0) == []
    answers = iter([True, False])
    with pytest.raises(OutcomeUnknown):
        await log.commit(APP, "w-1", [task], guarantee=AT_LEAST_ONCE, may_write=lambda: next(answers))
    assert await values(log, C0) == ["a"]
    assert await log.positions(APP, [P0]) == {}
    await log.commit(APP, "w-1", [task], guarantee=AT_LEAST_ONCE)
    assert await values(log, C0) == ["a", "a"]
    assert await log.positions(APP, [P0]) == {P0: 1}
