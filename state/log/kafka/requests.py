"""Kafka's requests that aiokafka has not, or has in too low a version. Fields and their order are the protocol's.

One rule: a request has one version, the lowest that says what is needed; a broker that does not know it is refused with
a clear word (`state.log.kafka.connections`). Kafka 3.9 and 4.x know all of these.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, ClassVar

from aiokafka.protocol.admin import CreateTopicsRequest_v3, CreateTopicsResponse_v3
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

NO_TOPIC_ID = b"\0" * 16
_TAGS = ("tags", TaggedFields)
_TEXT = CompactString("utf-8")
_PLAIN = String("utf-8")


class Uuid:
    """Sixteen bytes as they are."""

    @staticmethod
    def encode(value: bytes) -> bytes:
        return value

    @staticmethod
    def decode(data: BytesIO) -> bytes:
        return data.read(16)

    @staticmethod
    def repr(value: bytes) -> str:
        return value.hex()


_ID: Any = Uuid


def _many(*fields: Any) -> Any:
    return CompactArray(*fields)


class CreateTopicsResponse_v4(CreateTopicsResponse_v3):  # type: ignore[misc]
    API_VERSION = 4


class CreateTopicsRequest_v4(CreateTopicsRequest_v3):  # type: ignore[misc]
    """Version 4 takes -1 for the broker's default replication."""

    API_VERSION = 4
    RESPONSE_TYPE = CreateTopicsResponse_v4


class IncrementalAlterConfigsResponse_v1(Response):  # type: ignore[misc]
    API_KEY = 44
    API_VERSION = 1
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        ("responses", _many(("error", Int16), ("message", _TEXT), ("type", Int8), ("name", _TEXT), _TAGS)),
        _TAGS,
    )


class IncrementalAlterConfigsRequest_v1(RequestStruct):  # type: ignore[misc]
    """Changes the settings that it names and leaves the others as they are."""

    API_KEY = 44
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = IncrementalAlterConfigsResponse_v1
    SCHEMA: ClassVar[Any] = Schema(
        (
            "resources",
            _many(
                ("type", Int8),
                ("name", _TEXT),
                ("configs", _many(("name", _TEXT), ("operation", Int8), ("value", _TEXT), _TAGS)),
                _TAGS,
            ),
        ),
        ("validate_only", Boolean),
        _TAGS,
    )


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        (
            "topics",
            _many(
                ("topic", _TEXT),
                (
                    "partitions",
                    _many(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _TEXT),
                        ("error", Int16),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("error", Int16),
        _TAGS,
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]
    """Version 7 asks for stable offsets: none that a transaction still decides about."""

    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA: ClassVar[Any] = Schema(
        ("group", _TEXT),
        ("topics", _many(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
        ("require_stable", Boolean),
        _TAGS,
    )


class OffsetDeleteResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 47
    API_VERSION = 0
    SCHEMA: ClassVar[Any] = Schema(
        ("error", Int16),
        ("throttle", Int32),
        ("topics", Array(("topic", _PLAIN), ("partitions", Array(("partition", Int32), ("error", Int16))))),
    )


class OffsetDeleteRequest_v0(RequestStruct):  # type: ignore[misc]
    """Removes a group's committed offsets of the partitions that it names (KIP-496)."""

    API_KEY = 47
    API_VERSION = 0
    RESPONSE_TYPE = OffsetDeleteResponse_v0
    SCHEMA: ClassVar[Any] = Schema(
        ("group", _PLAIN), ("topics", Array(("topic", _PLAIN), ("partitions", Array(Int32))))
    )


class MetadataResponse_v12(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        ("brokers", _many(("node", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)),
        ("cluster_id", _TEXT),
        ("controller", Int32),
        (
            "topics",
            _many(
                ("error", Int16),
                ("name", _TEXT),
                ("topic_id", _ID),
                ("internal", Boolean),
                (
                    "partitions",
                    _many(
                        ("error", Int16),
                        ("index", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class MetadataRequest_v12(RequestStruct):  # type: ignore[misc]
    """Version 12 answers topic ids."""

    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponse_v12
    SCHEMA: ClassVar[Any] = Schema(
        ("topics", _many(("topic_id", _ID), ("name", _TEXT), _TAGS)),
        ("create", Boolean),
        ("operations", Boolean),
        _TAGS,
    )


class TxnOffsetCommitResponse_v3(Response):  # type: ignore[misc]
    API_KEY = 28
    API_VERSION = 3
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        (
            "topics",
            _many(("topic", _TEXT), ("partitions", _many(("partition", Int32), ("error", Int16), _TAGS)), _TAGS),
        ),
        _TAGS,
    )


class TxnOffsetCommitRequest_v3(RequestStruct):  # type: ignore[misc]
    """Version 3 carries the leader epoch and metadata beside an offset."""

    API_KEY = 28
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TxnOffsetCommitResponse_v3
    SCHEMA: ClassVar[Any] = Schema(
        ("transactional_id", _TEXT),
        ("group", _TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation", Int32),
        ("member", _TEXT),
        ("instance", _TEXT),
        (
            "topics",
            _many(
                ("topic", _TEXT),
                (
                    "partitions",
                    _many(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", _TEXT), _TAGS),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeTransactionsResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 65
    API_VERSION = 0
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        (
            "states",
            _many(
                ("error", Int16),
                ("transactional_id", _TEXT),
                ("state", _TEXT),
                ("timeout_ms", Int32),
                ("start_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", _many(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]
    """In what state the latest transactions of ids are, for their coordinator (KIP-664)."""

    API_KEY = 65
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA: ClassVar[Any] = Schema(("transactional_ids", CompactArray(_TEXT)), _TAGS)


class DescribeProducersResponse_v0(Response):  # type: ignore[misc]
    API_KEY = 61
    API_VERSION = 0
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        (
            "topics",
            _many(
                ("topic", _TEXT),
                (
                    "partitions",
                    _many(
                        ("partition", Int32),
                        ("error", Int16),
                        ("message", _TEXT),
                        (
                            "producers",
                            _many(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_ms", Int64),
                                ("coordinator_epoch", Int32),
                                ("open_since", Int64),
                                _TAGS,
                            ),
                        ),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeProducersRequest_v0(RequestStruct):  # type: ignore[misc]
    """Who writes to partitions, and from which offset on it has a transaction open there, for their leaders (KIP-664)."""

    API_KEY = 61
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeProducersResponse_v0
    SCHEMA: ClassVar[Any] = Schema(
        ("topics", _many(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)), _TAGS
    )


class OffsetForLeaderEpochResponse_v3(Response):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 3
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        (
            "topics",
            Array(
                ("topic", _PLAIN),
                ("partitions", Array(("error", Int16), ("partition", Int32), ("epoch", Int32), ("end", Int64))),
            ),
        ),
    )


class OffsetForLeaderEpochRequest_v3(RequestStruct):  # type: ignore[misc]
    """Where the records end that the leader of an epoch wrote (KIP-101, KIP-320)."""

    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = OffsetForLeaderEpochResponse_v3
    SCHEMA: ClassVar[Any] = Schema(
        ("replica", Int32),
        (
            "topics",
            Array(
                ("topic", _PLAIN),
                ("partitions", Array(("partition", Int32), ("current_epoch", Int32), ("epoch", Int32))),
            ),
        ),
    )


class OffsetCommitResponse_v7(Response):  # type: ignore[misc]
    API_KEY = 8
    API_VERSION = 7
    SCHEMA: ClassVar[Any] = Schema(
        ("throttle", Int32),
        ("topics", Array(("topic", _PLAIN), ("partitions", Array(("partition", Int32), ("error", Int16))))),
    )


class OffsetCommitRequest_v7(RequestStruct):  # type: ignore[misc]
    """Version 7 carries the leader epoch beside an offset, and leaves its retention to the brokers."""

    API_KEY = 8
    API_VERSION = 7
    RESPONSE_TYPE = OffsetCommitResponse_v7
    SCHEMA: ClassVar[Any] = Schema(
        ("group", _PLAIN),
        ("generation", Int32),
        ("member", _PLAIN),
        ("instance", _PLAIN),
        (
            "topics",
            Array(
                ("topic", _PLAIN),
                (
                    "partitions",
                    Array(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", _PLAIN)),
                ),
            ),
        ),
    )


def metadata(names: list[str] | None, *, operations: bool = False) -> MetadataRequest_v12:
    """Of the named topics; of all, where it is None. `operations`: with what the user may do with each."""
    topics: Any = None if names is None else [(NO_TOPIC_ID, name, {}) for name in names]
    return MetadataRequest_v12(topics, False, operations, {})
