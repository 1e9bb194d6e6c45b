"""The aiokafka and Faust sides: bytes as Kafka writes them, state per consumer, what is carried and what is refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.protocol.group import JoinGroupRequest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.partition_assignors import AssignorError, TopicPartition, wire
from orchestrator.partition_assignors.aiokafka import (
    CooperativeStickyPartitionAssignor,
    GroupConsumer,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
    _joining_once,
)

HELD = (TopicPartition("t0", 0), TopicPartition("t0", 2), TopicPartition("ü", 1))
# int32 2 topics; int16 2 "t0", int32 2 partitions, 0, 2; int16 2 (UTF-8 of ü), int32 1 partition, 1
V0 = bytes.fromhex("00000002 0002 7430 00000002 00000000 00000002 0002 c3bc 00000001 00000001")
V1 = V0 + bytes.fromhex("0000002a")


class Cluster:
    """What aiokafka tells an assignor of the topics."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


def metadata_of(
    data: bytes = b"", topics: tuple[str, ...] = ("t0",), version: int = 0
) -> ConsumerProtocolMemberMetadata:
    return ConsumerProtocolMemberMetadata(version, list(topics), data)


def shown(result: Any) -> dict[str, list[tuple[str, int]]]:
    return {m: [(tp.topic, tp.partition) for tp in assignment.partitions()] for m, assignment in result.items()}


def test_version_1_is_written_byte_by_byte() -> None:
    assert wire.encode_sticky(HELD, 42) == V1


def test_both_versions_are_read_and_later_ones_as_far_as_known() -> None:
    assert wire.decode_sticky(V1) == (HELD, 42)
    assert wire.decode_sticky(V0) == (HELD, -1)
    assert wire.decode_sticky(V1 + b"later fields") == (HELD, 42)
    assert wire.decode_sticky(bytes(4)) == ((), -1)


def test_the_bytes_are_those_of_aiokafkas_own_sticky_assignor() -> None:
    theirs = StickyAssignorUserDataV1([("t0", [0, 2]), ("ü", [1])], 42)
    assert theirs.encode() == V1
    assert StickyAssignorUserDataV1.decode(wire.encode_sticky(HELD, 42)).generation == 42


def test_java_reads_the_generation_of_our_cooperative_data_and_we_read_its() -> None:
    data = wire.encode_cooperative(HELD, 7)
    assert data[:4] == bytes.fromhex("00000007")
    assert wire.decode_cooperative(data) == (HELD, 7)
    assert wire.decode_cooperative(data[:4]) == ((), 7)


partitions = st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1))


@given(st.lists(partitions, max_size=8), st.integers(-1, 2**31 - 1))
def test_what_is_written_is_read(held: list[TopicPartition], generation: int) -> None:
    found, read = wire.decode_sticky(wire.encode_sticky(held, generation))
    assert (sorted(found), read) == (sorted(held), generation)


@given(st.binary(max_size=40))
def test_garbage_is_refused_or_read_but_never_breaks_anything_else(data: bytes) -> None:
    for decode in (wire.decode_sticky, wire.decode_cooperative, wire.decode_instance):
        try:
            decode(data)
        except wire.WireError as error:
            assert str(error).count(";") == 2


@pytest.mark.parametrize("cut", range(1, len(V0)))
def test_data_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_sticky(V0[:cut])


def test_sticky_goes_on_from_what_members_carry() -> None:
    members = {
        "a": metadata_of(wire.encode_sticky([TopicPartition("t0", 3)], 5)),
        "b": metadata_of(wire.encode_sticky([TopicPartition("t0", 0), TopicPartition("t0", 1)], 5)),
        "c": metadata_of(),
    }
    result = StickyPartitionAssignor.assign(Cluster(t0=4), members)
    assert shown(result) == {"a": [("t0", 3)], "b": [("t0", 0), ("t0", 1)], "c": [("t0", 2)]}


def test_a_member_that_does_not_know_its_generation_is_believed_where_nobody_contradicts() -> None:
    members = {
        "a": metadata_of(wire.encode_sticky([TopicPartition("t0", 0)], 5)),
        "b": metadata_of(wire.encode_sticky([TopicPartition("t0", 0), TopicPartition("t0", 1)], -1)),
        "c": metadata_of(wire.encode_sticky([TopicPartition("t0", 2)], 4)),
    }
    result = StickyPartitionAssignor.assign(Cluster(t0=4), members)
    assert shown(result) == {"a": [("t0", 0), ("t0", 3)], "b": [("t0", 1)], "c": [("t0", 2)]}


def test_unknown_topics_are_left_out() -> None:
    result = StickyPartitionAssignor.assign(Cluster(t0=1), {"a": metadata_of(topics=("t0", "gone"))})
    assert shown(result) == {"a": [("t0", 0)]}


def test_each_consumer_has_its_own_past() -> None:
    first = StickyPartitionAssignor.for_consumer(generation=lambda: 9)
    second = StickyPartitionAssignor.for_consumer()
    result = first.assign(Cluster(t0=2), {"a": metadata_of(), "b": metadata_of()})
    first.on_assignment(result["a"])
    second.on_assignment(result["b"])
    assert wire.decode_sticky(first.metadata(["t0"]).user_data) == ((TopicPartition("t0", 0),), 9)
    assert wire.decode_sticky(second.metadata(["t0"]).user_data) == ((TopicPartition("t0", 1),), -1)
    assert StickyPartitionAssignor.metadata(["t0"]).user_data == b""
    assert first.name == second.name == "sticky"


@pytest.mark.parametrize("adapter", [RangePartitionAssignor, RoundRobinPartitionAssignor])
def test_instance_ids_survive_a_bounce(adapter: type[RangePartitionAssignor]) -> None:
    def group(names: dict[str, str]) -> dict[str, list[tuple[str, int]]]:
        data = {m: adapter.for_consumer(instance).metadata(["t0"]).user_data for m, instance in names.items()}
        result = shown(adapter.assign(Cluster(t0=3), {m: metadata_of(bytes(d)) for m, d in data.items()}))
        return {names[m]: found for m, found in result.items()}

    assert group({"m1": "I0", "m2": "I1", "m3": "I2"}) == group({"m9": "I0", "m7": "I1", "m8": "I2"})
    assert adapter.for_consumer().metadata(["t0"]).user_data == b""


def test_data_that_cannot_be_read_is_logged_and_the_member_starts_afresh(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = StickyPartitionAssignor.assign(Cluster(t0=1), {"a": metadata_of(b"\xff\xff\xff\xff")})
    assert shown(result) == {"a": [("t0", 0)]}
    assert "member a starts without a past" in caplog.text


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_partitions_that_no_topic_has_are_data_that_cannot_be_read(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One member that is out of order costs its own past, and not the rebalance of the whole group."""
    strange = wire.encode_sticky([TopicPartition("t0", 1), TopicPartition("t0", number)], 5)
    good = wire.encode_sticky([TopicPartition("t0", 0)], 5)
    result = StickyPartitionAssignor.assign(Cluster(t0=2), {"a": metadata_of(strange), "b": metadata_of(good)})
    assert shown(result) == {"a": [("t0", 1)], "b": [("t0", 0)]}
    assert "member a starts without a past" in caplog.text and str(number) in caplog.text


def test_cooperative_is_sticky_here_and_refuses_to_lead_members_that_keep_partitions() -> None:
    own = CooperativeStickyPartitionAssignor.for_consumer(generation=lambda: 3)
    own.on_assignment(own.assign(Cluster(t0=2), {"a": metadata_of()})["a"])
    members = {"a": metadata_of(bytes(own.metadata(["t0"]).user_data)), "b": metadata_of()}
    assert shown(own.assign(Cluster(t0=2), members)) == {"a": [("t0", 0)], "b": [("t0", 1)]}
    with pytest.raises(AssignorError, match="member 'java'"):
        own.assign(Cluster(t0=2), {**members, "java": metadata_of(version=3)})


async def test_a_group_consumer_has_assignors_of_its_own() -> None:
    consumers = [
        GroupConsumer("t0", group_id="g", group_instance_id=f"i{n}", bootstrap_servers="127.0.0.1:1") for n in (0, 1)
    ]
    first, second = (consumer._partition_assignment_strategy[0] for consumer in consumers)
    assert first is not second
    assert first.state.instance_id == "i0"
    assert first.state.current_generation() == -1


def test_faust_apps_without_tables_get_the_sticky_rule() -> None:
    faust = pytest.importorskip("faust")
    from orchestrator.partition_assignors.faust import FaustStickyAssignor

    app = faust.App("orders", PartitionAssignor=FaustStickyAssignor, web_enabled=False)
    assignor = app.assignor
    assert isinstance(assignor, FaustStickyAssignor)
    fresh = assignor.metadata({"t0", "t1"})
    cluster = Cluster(t0=3, t1=1)
    before = assignor.assign(cluster, {"a": fresh, "b": fresh})
    assert {m: len(found) for m, found in shown(before).items()} == {"a": 2, "b": 2}
    assignor.on_assignment(before["b"])  # Faust checks its own format here
    after = assignor.assign(cluster, {"b": assignor.metadata({"t0", "t1"}), "c": fresh})
    assert shown(after)["b"] == shown(before)["b"]
    app.Table("counts", default=int)
    with pytest.raises(AssignorError, match="counts"):
        assignor.assign(cluster, {"a": fresh})


def test_faust_apps_with_tables_end_when_they_start() -> None:
    """In the assignment alone the error was aiokafka's, which tried again for ever: the worker hung, and said nothing."""
    faust = pytest.importorskip("faust")
    from orchestrator.partition_assignors.faust import FaustStickyAssignor

    app = faust.App("orders", PartitionAssignor=FaustStickyAssignor, web_enabled=False)
    app.Table("counts", default=int)
    with pytest.raises(AssignorError, match="the app has tables: \\['counts'\\]; Faust app 'orders'"):
        app.assignor


async def test_only_the_join_that_names_every_assignor_is_sent() -> None:
    """aiokafka asks for one JoinGroup per name, with a list that grows; the short ones would start rebalances."""
    sent: list[int] = []

    async def send(request: JoinGroupRequest | str) -> str:
        sent.append(0 if isinstance(request, str) else len(request._group_protocols))
        return "answer"

    def join(*names: str) -> JoinGroupRequest:
        return JoinGroupRequest("g", 1, 1, "", None, "consumer", [(name, b"") for name in names])

    once = _joining_once(send, 2)
    assert (await once(join("range"))).error_code == 0
    assert sent == []
    assert await once(join("range", "sticky")) == "answer"
    assert await once("heartbeat") == "answer"
    assert sent == [2, 0]
