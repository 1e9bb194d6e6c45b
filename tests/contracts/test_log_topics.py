"""What every log does with topics: create, grow, delete, compact, trim."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from state.errors import PositionOutOfRange, StateError, TopicMismatch, UnknownTopic
from state.log.protocol import FOR_EVER, GroupLog, NewRecord, Partition, Retention, StoredRecord, TaskCommit, TopicSpec
from tests.contracts.logs import (
    APP,
    C0,
    P0,
    P1,
    Place,
    arrived,
    keyed,
    last_per_key,
    lease_of,
    owned,
    read_all,
    records,
    until,
    values,
)


async def test_a_topic_is_made_once_and_keeps_its_id(log: GroupLog, place: Place) -> None:
    made = await log.create_topic(TopicSpec("orders", 4, "repartition"))
    assert (made.name, made.partitions, made.kind) == ("orders", 4, "repartition")
    assert await log.create_topic(TopicSpec("orders", 4, "repartition")) == made
    assert await log.topics(["orders"]) == {"orders": made}
    assert await (await place.open()).topics(["orders"]) == {"orders": made}


async def test_of_the_named_topics_those_that_exist_are_found(log: GroupLog) -> None:
    assert set(await log.topics(["payments", "nowhere", "counts-changelog"])) == {"payments", "counts-changelog"}
    assert await log.topics(["nowhere"]) == await log.topics([]) == {}


async def test_another_partition_count_is_refused(log: GroupLog) -> None:
    with pytest.raises(TopicMismatch, match=r"payments has 3 partitions and 5 were asked for"):
        await log.create_topic(TopicSpec("payments", 5))


async def test_a_topic_grows_and_keeps_what_it_has(log: GroupLog) -> None:
    before = (await log.topics(["payments"]))["payments"]
    await log.append({P0: records("a")})
    assert await log.seed_positions(await lease_of(log), {P0: 1}, {})
    grown = await log.grow_topic("payments", 5)
    assert (grown.topic_id, grown.partitions, grown.kind) == (before.topic_id, 5, "plain")
    assert await log.topics(["payments"]) == {"payments": grown}
    assert await log.create_topic(TopicSpec("payments", 5)) == grown
    last = Partition("payments", 4)
    assert await values(log, P0) == ["a"] and await log.positions(APP, [P0, last]) == {P0: 1}
    assert await log.ends([last]) == await log.starts([last]) == {last: 0}
    await log.append({last: records("b")})
    assert await values(log, last) == ["b"]
    with pytest.raises(UnknownTopic, match="payments has no partition 5"):
        await log.ends([Partition("payments", 5)])


async def test_a_topic_grows_under_its_reader(log: GroupLog) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    await log.grow_topic("payments", 4)
    new = Partition("payments", 3)
    reader.add(new, 0)
    await log.append({new: records("a"), P0: records("b")})
    assert await arrived(reader, [P0, new]) == {P0: [b"b"], new: [b"a"]}
    await reader.close()


async def test_the_same_number_is_nothing_to_do_and_fewer_are_refused(log: GroupLog) -> None:
    before = await log.topics(["payments"])
    assert await log.grow_topic("payments", 3) == before["payments"]
    for fewer in (2, 0, -1):
        with pytest.raises(TopicMismatch, match=rf"payments has 3 partitions and cannot have {fewer}"):
            await log.grow_topic("payments", fewer)
    with pytest.raises(UnknownTopic, match="no topic nowhere"):
        await log.grow_topic("nowhere", 3)
    assert await log.topics(["payments"]) == before


async def test_of_several_that_grow_a_topic_at_once_the_later_ones_are_refused_alike(log: GroupLog) -> None:
    """On Kafka the later one ended with an error of the broker, and another exit code."""
    for most in (6, 9, 12):
        asked = (most, most - 1, most, most - 2)
        answers = await asyncio.gather(*(log.grow_topic("payments", one) for one in asked), return_exceptions=True)
        for wanted, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, TopicMismatch) and wanted < most, answer
                assert "a partition is never taken away" in str(answer)
        assert (await log.topics(["payments"]))["payments"].partitions == most


@pytest.mark.parametrize("spec", [TopicSpec("x", 0), TopicSpec("", 1), TopicSpec("x", 1, "compacted")])
async def test_an_impossible_topic_is_refused(log: GroupLog, spec: TopicSpec) -> None:
    with pytest.raises(StateError):
        await log.create_topic(spec)


async def test_a_topic_made_again_has_another_id_and_is_empty(log: GroupLog) -> None:
    await log.append({P0: records("a")})
    assert await log.seed_positions(await lease_of(log), {P0: 1, C0: 0}, {})
    before = (await log.topics(["payments"]))["payments"]
    await log.delete_topic("payments")
    assert await log.topics(["payments"]) == {}

    async def forgotten() -> bool:
        return await log.positions(APP, [P0, C0]) == {C0: 0}

    await until("the positions of the deleted topic to be gone", forgotten)
    again = await log.create_topic(TopicSpec("payments", 3))
    assert again.topic_id != before.topic_id
    assert await log.ends([P0], settled=True) == {P0: 0}
    with pytest.raises(UnknownTopic, match="no topic nowhere"):
        await log.delete_topic("nowhere")


@pytest.mark.parametrize("partition", [Partition("nowhere", 0), Partition("payments", 3)])
async def test_unknown_partitions_are_named_everywhere(log: GroupLog, partition: Partition) -> None:
    reader = log.reader()
    reader.add(partition, 0)
    lease = await owned(log, "0_0")
    for call in (
        log.ends([partition]),
        log.ends([partition], settled=True),
        log.starts([partition]),
        log.append({partition: records("a")}),
        log.commit(APP, "w-1", [TaskCommit("0_0", 1, {partition: records("a")})]),
        log.seed_positions(lease, {P0: 1}, {partition: records("a")}),
        reader.poll(wait_ms=1_000),
        log.trim({partition: 0}),
    ):
        with pytest.raises(UnknownTopic, match=partition.topic):
            await call


async def test_a_topic_deleted_under_a_reader_is_named(log: GroupLog) -> None:
    reader = log.reader()
    reader.add(P0, 0)
    assert await reader.poll() == []
    await log.delete_topic("payments")

    async def named() -> bool:
        try:
            await reader.poll(wait_ms=100)
        except UnknownTopic as error:
            return "payments" in str(error)
        return False

    await until("the reader to say so", named)


# ---------------------------------------------------------------------- upkeep


async def test_compaction_keeps_the_last_of_each_key_at_its_offset(log: GroupLog) -> None:
    for number in range(5):
        await log.append({C0: keyed(a=f"a{number}", b=f"b{number}")})
    await log.append({C0: keyed(a=None, c="c")})
    before, end = await read_all(log, C0), await log.ends([C0], settled=True)
    wanted = [one for one in before if (one.key, one.value) in [(b"b", b"b4"), (b"a", None), (b"c", b"c")]]

    seconds = itertools.count(1)

    async def read_but_later(position: int = 0) -> list[StoredRecord]:
        """Without what only closes off: a broker goes on compacting those by itself between two reads."""
        return [one for one in await read_all(log, C0, position) if one.key != b"later"]

    async def compacted() -> bool:
        """A broker compacts what later records have closed off: later by their own time, whatever the clock says."""
        await log.compact("counts-changelog")
        if await read_but_later() == wanted:
            return True
        await log.append({C0: [NewRecord(b"later", b"x", 1_000 + 1_000 * next(seconds))]})
        return False

    await until("the last of each key", compacted)
    for position in range(end[C0] + 1):
        assert await read_but_later(position) == [one for one in wanted if one.offset >= position]
    await log.append({C0: keyed(b="later")})
    kept = last_per_key(await read_all(log, C0))
    assert {key: kept.get(key) for key in (b"a", b"b", b"c")} == {b"a": None, b"b": b"later", b"c": b"c"}
    assert await log.starts([C0]) == {C0: 0}


async def test_only_a_changelog_is_compacted(log: GroupLog) -> None:
    await log.append({P0: [NewRecord(b"k", b"1", 0), NewRecord(b"k", b"2", 0)]})
    with pytest.raises(StateError, match="payments"):
        await log.compact("payments")
    with pytest.raises(UnknownTopic, match="nowhere"):
        await log.compact("nowhere")
    assert await values(log, P0) == ["1", "2"]


async def test_trimming_removes_what_lies_before_and_nothing_else(log: GroupLog) -> None:
    behind = [(await log.append({P0: records(f"{number}a", f"{number}b")}))[P0] for number in range(5)]
    assert await log.starts([P0]) == {P0: 0}
    await log.trim({P0: behind[1], P1: 0})
    (start,) = (await log.starts([P0])).values()
    assert 0 < start <= behind[1]
    assert await values(log, P0, behind[1]) == ["2a", "2b", "3a", "3b", "4a", "4b"]
    await log.trim({P0: behind[3] - 1})
    assert await values(log, P0, behind[3] - 1) == ["3b", "4a", "4b"]
    await log.trim({P0: 10_000})
    ends = await log.ends([P0], settled=True)
    assert await values(log, P0) == []
    assert ends == await log.starts([P0])
    await log.append({P0: records("new")})
    assert await values(log, P0) == ["new"]


async def test_what_was_trimmed_cannot_be_read_and_the_start_is_named(log: GroupLog) -> None:
    behind = [(await log.append({P0: records(str(number)), P1: records(str(number))}))[P0] for number in range(3)]
    await log.trim({P0: behind[1]})
    (start,) = (await log.starts([P0])).values()
    reader = log.reader()
    reader.add(P1, 0)
    reader.add(P0, 0)
    refused: list[PositionOutOfRange] = []

    async def told() -> bool:
        try:
            await reader.poll(wait_ms=100)
        except PositionOutOfRange as error:
            refused.append(error)
        return bool(refused)

    await until("the reader to refuse", told)
    assert f"position 0 of payments-0 lies before its start {start}" in str(refused[0])
    assert (refused[0].partition, refused[0].start) == (P0, start)
    assert refused[0].end >= behind[2]
    reader.add(P0, start)
    assert (await arrived(reader, [P0]))[P0][-1] == b"2"


async def test_a_retention_is_a_topics_own_and_lasts(log: GroupLog, place: Place) -> None:
    made = await log.create_topic(TopicSpec("kept", 2, retention=Retention(ms=60_000)))
    assert made.retention == Retention(ms=60_000)
    changed = await log.set_retention("kept", Retention(bytes=5_000))
    assert changed.retention == Retention(bytes=5_000) and changed.topic_id == made.topic_id
    assert (await (await place.open()).topics(["kept"]))["kept"] == changed
    assert (await log.set_retention("kept", FOR_EVER)).retention == FOR_EVER
    with pytest.raises(UnknownTopic):
        await log.set_retention("nowhere", FOR_EVER)
    with pytest.raises(StateError, match="has no retention"):
        await log.set_retention("counts-changelog", Retention(ms=1))
    with pytest.raises(StateError, match="has no retention"):
        await log.create_topic(TopicSpec("again", 1, "changelog", Retention(ms=1)))


async def test_what_is_past_its_retention_is_known_and_goes_with_a_trim(log: GroupLog) -> None:
    """Where a broker does not do it by itself."""
    await log.create_topic(TopicSpec("kept", 2))
    place, other = Partition("kept", 0), Partition("kept", 1)
    for number in range(40):
        await log.append({place: [NewRecord(b"k", b"%03d" % number + bytes(1_000), 0)]})
    assert await log.expired([place, other]) == {}
    await log.set_retention("kept", Retention(bytes=5_000))
    found = await log.expired([place, other])
    if not found:
        return  # a broker's own affair
    assert found[other] == 0 and found[place] > 0
    assert await log.trim(found) >= 35
    assert await log.starts([place, other]) == found
    left = await read_all(log, place, found[place])
    assert 3 <= len(left) <= 5 and left[-1].value is not None and left[-1].value[:3] == b"039"
