"""What a member says about itself, as bytes. One rule: what Kafka's Java clients write and read is kept to the byte.

The sticky assignor's user data (KIP-54, KIP-341), all numbers big-endian:
  version 0: array of (topic: int16 length + UTF-8, array of int32 partitions)
  version 1: the same, then the generation as int32
Both are read, version 1 is written. The cooperative one of Java is the generation alone; ours puts what was held behind
it, where Java does not look. Range and round robin have no user data in Java; ours is the instance id, marked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from orchestrator.partition_assignors.model import AssignorError, TopicPartition

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_INSTANCE = b"instance:"
UNKNOWN_GENERATION = -1


class WireError(AssignorError):
    """Bytes that are no user data of this kind."""


def encode_sticky(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Version 1: what was held, and in which generation."""
    return _encode_held(owned) + _INT32.pack(generation)


def decode_sticky(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Version 1 or 0; what else follows is of a later version and left alone. Raises WireError."""
    held, rest = _decode_held(data, 0)
    if len(data) - rest >= _INT32.size:
        return held, int(_INT32.unpack_from(data, rest)[0])
    if rest < len(data):
        raise WireError(f"{len(data) - rest} bytes where a generation has 4; sticky user data; is it another kind?")
    return held, UNKNOWN_GENERATION


def encode_cooperative(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """The generation first, as Java has it; what was held behind it."""
    return _INT32.pack(generation) + _encode_held(owned)


def decode_cooperative(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Ours or Java's; Java's says nothing about what is held. Raises WireError."""
    if len(data) < _INT32.size:
        raise WireError(f"{len(data)} bytes where a generation has 4; cooperative user data; is it another kind?")
    generation = int(_INT32.unpack_from(data)[0])
    held = _decode_held(data, _INT32.size)[0] if len(data) > _INT32.size else ()
    return held, generation


def encode_instance(instance_id: str | None) -> bytes:
    return b"" if instance_id is None else _INSTANCE + instance_id.encode()


def decode_instance(data: bytes) -> str | None:
    """The instance id; None when there is none or the bytes are another program's. Raises WireError."""
    if not data.startswith(_INSTANCE):
        return None
    try:
        return data.removeprefix(_INSTANCE).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"instance id is not UTF-8: {error.reason}; user data; set it as text") from error


def _encode_held(owned: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in owned:
        topics.setdefault(topic, []).append(partition)
    parts = [_INT32.pack(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    return b"".join(parts)


def _decode_held(data: bytes, at: int) -> tuple[tuple[TopicPartition, ...], int]:
    held: list[TopicPartition] = []
    try:
        (topics,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        for _ in range(_counted(topics, data, at, 6)):
            (length,) = _INT16.unpack_from(data, at)
            at += _INT16.size
            name = data[at : at + _counted(length, data, at, 1)].decode()
            at += length
            (count,) = _INT32.unpack_from(data, at)
            at += _INT32.size
            partitions = struct.unpack_from(f">{_counted(count, data, at, 4)}i", data, at)
            if partitions and (lowest := min(partitions)) < 0:
                raise WireError(f"no topic has a partition {lowest}; user data at byte {at}; is it another kind?")
            at += count * _INT32.size
            held.extend(TopicPartition(name, partition) for partition in partitions)
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"cut short or not text: {error}; user data at byte {at}; is it another kind?") from error
    return tuple(held), at


def _counted(count: int, data: bytes, at: int, size: int) -> int:
    """A count that fits into what is left, so that garbage does not ask for gigabytes."""
    if count < 0 or count * size > len(data) - at:
        raise WireError(f"a count of {count} does not fit; user data at byte {at}; is it another kind?")
    return count
