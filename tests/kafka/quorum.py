"""Who is the active controller: DescribeQuorum, which aiokafka does not have. A metadata answer names any broker instead."""

from __future__ import annotations

from typing import Any, ClassVar

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from state.log.kafka.codes import Unreachable
from state.log.kafka.connections import Connections

_TAGS = ("tags", TaggedFields)
_REPLICA = CompactArray(("replica", Int32), ("end", Int64), _TAGS)


class DescribeQuorumResponse_v0(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 55, 0
    SCHEMA: ClassVar[Any] = Schema(
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        *(("partition", Int32), ("error_code", Int16), ("leader", Int32), ("epoch", Int32)),
                        *(("high_watermark", Int64), ("voters", _REPLICA), ("observers", _REPLICA), _TAGS),
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeQuorumRequest_v0(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, FLEXIBLE_VERSION = 55, 0, True
    RESPONSE_TYPE = DescribeQuorumResponse_v0
    SCHEMA: ClassVar[Any] = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(("partition", Int32), _TAGS)), _TAGS
            ),
        ),
        _TAGS,
    )


async def controller(connections: Connections) -> int | None:
    """Its number; None while there is none."""
    request = DescribeQuorumRequest_v0([("__cluster_metadata", [(0, {})], {})], {})
    try:
        answer = await connections.ask_any(request)
    except Unreachable:
        return None
    leader: int = answer.topics[0][1][0][2]
    return leader if leader >= 0 else None
