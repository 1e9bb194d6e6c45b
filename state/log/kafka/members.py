"""Whether the consumer group of an application's name has members: another program's, as ours has none.

One rule: a group is asked about in every protocol. Asked as a classic one, a broker calls a group of another protocol (KIP-848,
KIP-1071) dead and without members, and takes our positions beside theirs all the same. A share group (KIP-932) takes no positions,
with members or without.
Used before a start, and by `writers.py` before an id is opened.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, ClassVar

from aiokafka.protocol.admin import DescribeGroupsRequest_v1
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
    UnsignedVarInt32,
)

from state.errors import StateError
from state.log.kafka import rights
from state.log.kafka.cluster import Cluster
from state.log.kafka.codes import NONE, TOPIC_DENIED, UNKNOWN_GROUP, UNSUPPORTED, KafkaRefused
from state.log.kafka.connections import GROUP, Connections, NotSpoken
from state.log.kafka.rights import on

_DEAD, _EMPTY = "Dead", "Empty"
_TEXT = CompactString("utf-8")


class GroupInUse(StateError):
    """The consumer group of the application's name has members of another program."""

    exit_code = 3


class _Described:
    """What both answers begin with, of the one group that is asked about; what follows differs, and is not read."""

    def __init__(self, code: int, state: str) -> None:
        self.code = code
        self.state = state

    @classmethod
    def decode(cls, stream: BytesIO) -> _Described:
        Int32.decode(stream)  # throttle time
        UnsignedVarInt32.decode(stream)  # one group
        code = Int16.decode(stream)
        _TEXT.decode(stream)  # a message
        _TEXT.decode(stream)  # the group
        return cls(code, _TEXT.decode(stream) or "")


class _DescribeRequest_v0:
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Described
    SCHEMA: ClassVar[Any] = Schema(
        ("groups", CompactArray(_TEXT)), ("authorized_operations", Boolean), ("tags", TaggedFields)
    )


class ConsumerGroupDescribeRequest_v0(_DescribeRequest_v0, RequestStruct):  # type: ignore[misc]
    """A group of the protocol that brokers assign by, `group.protocol=consumer` (KIP-848)."""

    API_KEY = 69


class StreamsGroupDescribeRequest_v0(_DescribeRequest_v0, RequestStruct):  # type: ignore[misc]
    """A group of Kafka Streams with `group.protocol=streams` (KIP-1071)."""

    API_KEY = 89


class ShareGroupDescribeRequest_v1(_DescribeRequest_v0, RequestStruct):  # type: ignore[misc]
    """A group of consumers that share partitions (KIP-932)."""

    API_KEY = 77
    API_VERSION = 1


async def refuse_members(cluster: Cluster, application: str) -> None:
    """Our offsets stand in the group without members; a consumer of that name would fight us for them. Raises GroupInUse."""
    group = cluster.topics.names.inside(application)

    async def ask() -> str:
        return await _members(cluster.connections, application, group)

    if members := await cluster.connections.retried(f"describing group {application}", ask):
        whom = "it" if members == "1 member" else "them"
        raise GroupInUse(
            f"consumer group {group} has {members} of another program, which would commit over the "
            f"positions of application '{application}': stop {whom}, or give the application another id"
        )


async def _members(connections: Connections, application: str, group: str) -> str:
    """How many; "" where there are none."""
    answer = await connections.coordinated(GROUP, group, DescribeGroupsRequest_v1([group]), "quick")
    code, _, state, _, _, members = answer.groups[0]
    _check(connections, application, group, code)
    if members:
        return "1 member" if len(members) == 1 else f"{len(members)} members"
    if state != _DEAD:
        return ""
    for request in (ConsumerGroupDescribeRequest_v0, StreamsGroupDescribeRequest_v0, ShareGroupDescribeRequest_v1):
        try:
            found = await connections.coordinated(GROUP, group, request([group], False, {}), "quick")
        except NotSpoken:
            continue  # nobody speaks that protocol with this broker
        if found.code in (UNKNOWN_GROUP, UNSUPPORTED):
            continue
        if request is ShareGroupDescribeRequest_v1 and found.code in (NONE, TOPIC_DENIED):
            raise GroupInUse(
                f"group {group} is a share group, which takes no positions of application '{application}': delete it "
                "(kafka-share-groups --delete), or give the application another id"
            )
        if found.code == TOPIC_DENIED:
            return "members"  # which read what this user may not see
        _check(connections, application, group, found.code)
        return "" if found.state in (_EMPTY, _DEAD) else "members"
    return ""


def _check(connections: Connections, application: str, group: str, code: int) -> None:
    if code != NONE:
        taken = on(rights.GROUP, rights.DESCRIBE, group)
        refused = KafkaRefused(f"describing group {application}", code, None, taken)
        connections.forget_if_moved(GROUP, group, refused)
        raise refused
