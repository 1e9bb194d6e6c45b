"""`log copy` between logs: every record with its time and headers, every position at the same record, whatever lies between the
offsets; and a copy that ends at any of its writes goes on, or says why not."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.errors import OrchestratorError, RefusedBySafety
from state.errors import LogUnavailable
from state.log.base import BASE, Base, encode
from state.log.group_store import OwnerRecord
from state.log.memory import MemoryLog
from state.log.protocol import FOR_EVER, GroupLog, NewRecord, Partition, Retention, TaskCommit, TopicSpec
from tests.contracts.logs import PLACES, KafkaPlace, Place, read_all
from workers.commands.log_copy_plan import planned
from workers.commands.log_copy_steps import carry_out
from workers.commands.produce_input import UNFINISHED
from workers.errors import AppRefused
from workers.fleet.held_lease import Held
from workers.instance.ledger import SETTINGS, kept_settings
from workers.log.copying import append_missing
from workers.log.produced import PROGRESS
from workers.prepare import BEGINNING, BEGUN, COPY, DESCRIPTION, NUMBERING, REPARTITIONED, refuse_half_done
from workers.tasks import halts
from workers.topic_identities import SEEN, TOPIC_IDS

APP = "bank"
IN = [Partition("in", number) for number in range(3)]
OUT, CHANGES = Partition("out", 0), Partition("bank-t-changelog", 0)
TOPICS = [
    TopicSpec("in", 3),
    TopicSpec("out", 1, retention=Retention(ms=1 << 41)),  # the records are of 1970
    TopicSpec(CHANGES.topic, 1, "changelog"),
]
DESCRIBED = {
    "topics": {"in": {"kind": "plain"}, "out": {"kind": "plain"}},
    "tables": {"t": {"changelog_topic": CHANGES.topic}},
    "subtopologies": [{"number": 0, "sources": ["in"]}],
}
Pair = tuple[GroupLog, GroupLog]
KAFKA = pytest.mark.kafka


@pytest.fixture(
    params=[
        ("memory", "sqlite"),
        ("sqlite", "memory"),
        pytest.param(("sqlite", "kafka"), marks=KAFKA),
        pytest.param(("kafka", "sqlite"), marks=KAFKA),
    ],
    ids=lambda pair: "-to-".join(pair),
)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    places: list[Place] = []
    for number, kind in enumerate(request.param):
        (tmp_path / str(number)).mkdir()
        places.append(PLACES[kind](tmp_path / str(number)))
    yield await places[0].open(), await places[1].open()
    for place in places:
        await place.close()


def record(number: int, key: bytes | None = b"k") -> NewRecord:
    return NewRecord(key, b"v%d" % number, 1_000_000 + number, (("h", b"%d" % number),))


async def lived(source: GroupLog, seed: int = 1) -> None:
    """An application that has committed in transactions, so that offsets are not dense where a log leaves markers; a part of
    the input is read, one partition was never committed, one began behind what was trimmed."""
    choice = random.Random(seed)
    for spec in TOPICS:
        await source.create_topic(spec)
    await source.set_retention("in", FOR_EVER)  # these records are of long ago
    lease = await source.acquire(APP, "c", "a:1", None)
    assert lease is not None
    await source.open_writer(APP, "w")
    await source.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", lease.term)])
    number = 0
    for _ in range(12):
        for partition in IN:
            some = [record(number + one) for one in range(choice.randint(1, 9))]
            number += len(some)
            await source.append({partition: some, OUT: [record(number)]})
    for turn in range(6):
        position = {one: (await read_all(source, one))[choice.randint(turn * 3, turn * 3 + 3)].offset for one in IN[:2]}
        changed = [
            NewRecord(b"k%d" % choice.randint(0, 4), choice.choice([None, b"x%d" % turn]), turn) for _ in range(5)
        ]
        await source.commit(APP, "w", [TaskCommit("0_0", 1, {OUT: [record(turn)], CHANGES: changed}, position)])
    await source.trim({IN[1]: (await read_all(source, IN[1]))[4].offset})
    for kind, value in ((DESCRIPTION, json.dumps(DESCRIBED).encode()), (NUMBERING, b"{}")):
        await source.put_metadata(APP, kind, "app", value)
    await source.put_metadata(APP, PROGRESS, "in:abc.0", b"progress")
    await source.put_metadata(APP, UNFINISHED, "in:abc.1", b"input")
    await source.put_metadata(APP, BEGUN, (await source.topics(["in"]))["in"].topic_id, b"3")
    topic_id = (await source.topics(["in"]))["in"].topic_id
    begins = (await read_all(source, IN[2]))[5].offset
    await source.put_metadata(APP, BEGINNING, f"{topic_id}-2", str(begins).encode())
    place = (await read_all(source, IN[0]))[20].offset
    await halts.write(source, APP, "0_0", halts.Halt("in", 0, place, "why", 5))
    await source.put_metadata(APP, SETTINGS, SETTINGS.name, b'{"standbys": "1"}', lease=lease)
    laid = {str(IN[0]): (await read_all(source, IN[0]))[7].offset, str(OUT): (await source.ends([OUT]))[OUT]}
    await source.put_metadata(APP, REPARTITIONED, "inputs", json.dumps({"to": 3, "ends": laid}).encode(), lease=lease)


async def copied(source: GroupLog, target: GroupLog, *, begun: bool = False) -> Any:
    """`begun`: as if an earlier copy had not ended."""
    lease = await target.acquire(APP, "copy", "", await target.lease(APP))
    assert lease is not None
    if begun:
        await target.put_metadata(APP, COPY, "from", source.log_id.encode(), lease=lease)
    return await carry_out(source, target, Held(target, lease), await planned(source, target, APP))


async def rest(log: GroupLog, partition: Partition, position: int | None = None) -> list[tuple[Any, ...]]:
    """What is read from a position on, without the offsets."""
    found = await read_all(log, partition, position)
    return [(one.key, one.value, one.timestamp_ms, one.headers) for one in found]


async def image(log: GroupLog, partition: Partition) -> dict[bytes | None, bytes]:
    last = {one.key: one.value for one in await read_all(log, partition)}
    return {key: value for key, value in last.items() if value is not None}


async def same(source: GroupLog, target: GroupLog) -> None:
    """Everything that the application is: records, positions at their records, tables, facts, a halt at its record."""
    for partition in (*IN, OUT):
        assert await rest(source, partition) == await rest(target, partition), partition
    assert await image(source, CHANGES) == await image(target, CHANGES) != {}
    before, after = await source.positions(APP, IN), await target.positions(APP, IN)
    assert before.keys() == after.keys() == set(IN[:2])
    for partition, position in before.items():
        assert await rest(
            source, partition, max(position, (await source.starts([partition]))[partition])
        ) == await rest(target, partition, after[partition])
    for kind in (DESCRIPTION, NUMBERING, PROGRESS, UNFINISHED):
        assert await source.metadata_of(APP, kind) == await target.metadata_of(APP, kind) != {}
    ids = {name: info.topic_id for name, info in (await target.topics([spec.name for spec in TOPICS])).items()}
    assert await target.metadata(APP, BEGUN, ids["in"]) == b"3"
    assert await target.metadata_of(APP, TOPIC_IDS) == {name: one.encode() for name, one in ids.items()}
    assert json.loads(await target.metadata(APP, SEEN, "in") or b"") == [0, 1]
    began = []
    for log in (source, target):
        key = f"{(await log.topics(['in']))['in'].topic_id}-2"
        began.append(await rest(log, IN[2], int(await log.metadata(APP, BEGINNING, key) or -1)))
    assert began[0] == began[1] and len(began[0]) == len(await read_all(source, IN[2])) - 5
    halted = [(await halts.read_all(log, APP))["0_0"] for log in (source, target)]
    assert await rest(source, IN[0], halted[0].offset) == await rest(target, IN[0], halted[1].offset)
    assert await kept_settings(source, APP) == await kept_settings(target, APP) == {"standbys": "1"}
    laid = [json.loads(await log.metadata(APP, REPARTITIONED, "inputs") or b"{}") for log in (source, target)]
    assert [one["to"] for one in laid] == [3, 3] and laid[0]["ends"].keys() == laid[1]["ends"].keys()
    for partition in (IN[0], OUT):
        ends = [one["ends"][str(partition)] for one in laid]
        assert await rest(source, partition, ends[0]) == await rest(target, partition, ends[1])
    kept = [
        {name: info.retention for name, info in (await log.topics(["in", "out"])).items()} for log in (source, target)
    ]
    assert kept[0] == kept[1] == {"in": FOR_EVER, "out": Retention(ms=1 << 41)}
    await refuse_half_done(target, APP)


async def test_an_application_is_the_same_there(pair: Pair) -> None:
    source, target = pair
    await lived(source)
    done = await copied(source, target)
    await same(source, target)
    assert done.positions == 2 and done.metadata == 9
    counts = {topic.name: topic.records for topic in done.topics}
    assert counts["in"] == sum([len(await read_all(source, one)) for one in IN])
    again = await copied(source, target, begun=True)
    assert {topic.records for topic in again.topics} == {0}, "what is there is not written again"
    await same(source, target)
    lease = await source.lease(APP)
    assert lease is not None
    await source.put_metadata(APP, SETTINGS, SETTINGS.name, None, lease=lease)
    await copied(source, target, begun=True)
    assert await kept_settings(target, APP) == {}, "what was taken back in between is no longer set"


STEPS: dict[str, tuple[str, int, str]] = {
    "the note": ("put_metadata", 1, "copy"),
    "the second topic": ("create_topic", 2, ""),
    "the first records": ("append", 1, ""),
    "records of the changelog": ("append", 1, CHANGES.topic),
    "the last records": ("append", 1, "out"),
    "the description": ("put_metadata", 1, "description"),
    "a halt": ("put_metadata", 1, "halt"),
    "settings": ("put_metadata", 1, "settings"),
    "the layout": ("put_metadata", 1, "repartitioned"),
    "positions": ("seed_positions", 1, ""),
    "topic ids": ("put_metadata", 2, "topic-ids"),
    "the note is gone": ("put_metadata", 2, "copy"),
}


def failing(
    call: Callable[..., Awaitable[Any]], times: int, what: str, *, after: bool
) -> Callable[..., Awaitable[Any]]:
    """The call, which fails at the `times`-th time that concerns `what`, before or after it was done."""
    left = times

    async def one(*args: Any, **named: Any) -> Any:
        nonlocal left
        left -= not what or what in repr(args)
        if left == 0 and not after:
            left = -1
            raise LogUnavailable("away")
        done = await call(*args, **named)
        if left == 0:
            left = -1
            raise LogUnavailable("away")
        return done

    return one


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("step", STEPS)
async def test_one_that_ended_half_way_goes_on(
    tmp_path: Path, step: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = PLACES["sqlite"](tmp_path / "a"), PLACES["memory"](tmp_path / "b")
    source, target = await first.open(), await second.open()
    await lived(source, seed=7)
    method, times, what = STEPS[step]
    with monkeypatch.context() as patch:
        patch.setattr(target, method, failing(getattr(target, method), times, what, after=after))
        with pytest.raises(LogUnavailable):
            await copied(source, target)
    begun = await target.metadata(APP, COPY, "from") is not None
    assert begun is ((step, after) not in {("the note", False), ("the note is gone", True)})
    if begun:
        with pytest.raises(AppRefused, match="log copy"):
            await refuse_half_done(target, APP)
    if begun or not after:
        await copied(source, target)
    await same(source, target)
    await first.close()
    await second.close()


async def other_records(source: GroupLog, target: GroupLog) -> None:
    await target.create_topic(TOPICS[0])
    await target.set_retention("in", FOR_EVER)
    await target.append({IN[2]: [record(99)]})


async def other_count(source: GroupLog, target: GroupLog) -> None:
    await target.create_topic(TopicSpec("in", 4))


async def other_table(source: GroupLog, target: GroupLog) -> None:
    await target.create_topic(TOPICS[2])
    await target.append({CHANGES: [record(1)]})


async def short_retention(source: GroupLog, target: GroupLog) -> None:
    await target.create_topic(TopicSpec("in", 3, retention=Retention(ms=86_400_000)))


async def shorter_retention(source: GroupLog, target: GroupLog) -> None:
    await target.create_topic(TopicSpec("out", 1, retention=Retention(ms=1 << 40)))


async def smaller_retention(source: GroupLog, target: GroupLog) -> None:
    await source.set_retention("in", Retention(bytes=1 << 30))
    await target.create_topic(TopicSpec("in", 3, retention=Retention(bytes=1 << 20)))


async def a_base(source: GroupLog, target: GroupLog) -> None:
    lease = await source.lease(APP)
    assert lease is not None
    info = (await source.topics([CHANGES.topic]))[CHANGES.topic]
    await source.put_metadata(APP, BASE, CHANGES.topic, encode(Base("s", info.topic_id)), lease=lease)


async def other_positions(source: GroupLog, target: GroupLog) -> None:
    await copied(source, target)
    await target.open_writer(APP, "x")
    lease = await target.acquire(APP, "c", "", await target.lease(APP))
    assert lease is not None
    await target.record_owners(lease, [OwnerRecord("0_0", 1, "m", "x", lease.term)])
    await target.commit(APP, "x", [TaskCommit("0_0", 1, {}, {IN[0]: 1})])
    await target.put_metadata(APP, COPY, "from", source.log_id.encode(), lease=lease)


REFUSED = {
    "another record": other_records,
    "4 partitions": other_count,
    "has records in bank-t-changelog": other_table,
    "keeps records for .* and the source keeps them for ever": short_retention,
    "out is there already and keeps records for": shorter_retention,
    "keeps records for 1048576 bytes a partition": smaller_retention,
    "goes on from a snapshot": a_base,
    "positions on the target that are not": other_positions,
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_cannot_be_the_copy_is_refused(tmp_path: Path, why: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = PLACES["sqlite"](tmp_path / "a"), PLACES["sqlite"](tmp_path / "b")
    source, target = await first.open(), await second.open()
    await lived(source)
    await REFUSED[why](source, target)
    with pytest.raises(RefusedBySafety, match=why):
        await copied(source, target)
    await asyncio.gather(first.close(), second.close())


async def test_a_topic_that_goes_on_in_the_target_is_taken(tmp_path: Path) -> None:
    """Another application that reads it was moved before, and its producers write there by now."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = PLACES["sqlite"](tmp_path / "a"), PLACES["memory"](tmp_path / "b")
    source, target = await first.open(), await second.open()
    await lived(source)
    await target.create_topic(TOPICS[0])
    for partition in IN:
        listed = [
            NewRecord(one.key, one.value, one.timestamp_ms, one.headers) for one in await read_all(source, partition)
        ]
        await target.append({partition: listed})
    await source.commit(APP, "w", [TaskCommit("0_0", 1, {}, await source.ends(IN[:1], settled=True))])
    await target.append({IN[0]: [record(5_000)]})
    await copied(source, target)
    left = await read_all(target, IN[0], (await target.positions(APP, IN))[IN[0]])
    assert [one.value for one in left] == [b"v5000"]
    await asyncio.gather(first.close(), second.close())


@pytest.mark.kafka
async def test_records_that_brokers_would_delete_at_once_are_refused(tmp_path: Path) -> None:
    """The source keeps them by when they were appended, brokers go by the times that they have."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = PLACES["sqlite"](tmp_path / "a"), PLACES["kafka"](tmp_path / "b")
    source, target = await first.open(), await second.open()
    await lived(source)
    await source.set_retention("in", Retention(ms=86_400_000))
    with pytest.raises(RefusedBySafety, match="in-0: the record at 0 has a time longer ago than the 1 d"):
        await copied(source, target)
    assert await target.topics(["in"]) == {}
    await source.set_retention("in", FOR_EVER)
    await copied(source, target)
    await same(source, target)
    await asyncio.gather(first.close(), second.close())


class _Plain(KafkaPlace):
    """Topics are as the broker makes them."""

    topic_settings: ClassVar[dict[str, str]] = {}


@pytest.mark.kafka
async def test_one_that_ended_before_a_topic_had_its_retention_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker gives it its own, by which old records would go."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = PLACES["sqlite"](tmp_path / "a"), _Plain(tmp_path / "b")
    source, target = await first.open(), await second.open()
    await lived(source)
    with monkeypatch.context() as patch:
        patch.setattr(target, "set_retention", failing(target.set_retention, 1, "in", after=False))
        with pytest.raises(LogUnavailable):
            await copied(source, target)
    assert (await target.topics(["in"]))["in"].retention.ms is not None
    await copied(source, target)
    await same(source, target)
    await asyncio.gather(first.close(), second.close())


async def test_a_record_that_the_target_does_not_take_names_its_topic_and_what_to_do() -> None:
    """The line said that nothing was written, of a copy that had written all before it."""
    source, target, one = MemoryLog(), MemoryLog(max_message_bytes=500), Partition("in", 0)
    for log in (source, target):
        await log.create_topic(TopicSpec("in", 1))
    await source.append({one: [NewRecord(b"k", b"v" * 1_000, 1)]})
    with pytest.raises(
        OrchestratorError, match=r"^in-0 cannot be copied: .*change that setting of the topic on the target"
    ):
        await append_missing(source, target, one)
