"""A batch as one producer's: its id, epoch and sequence in the header. Pure.

One rule: only the header changes; the records were built before it was known who writes them. `producer.py` seals what it sends.
Source: the record batch of Kafka's protocol, version 2.
"""

from __future__ import annotations

import struct

from aiokafka.record.util import calc_crc32c

_CRC_AT, _ATTRIBUTES_AT, _PRODUCER_AT, _TRANSACTIONAL = 17, 21, 43, 0x10
_attributes = struct.Struct(">h")
_producer = struct.Struct(">qhi")
_crc = struct.Struct(">I")


def seal(data: bytes, producer: int, epoch: int, sequence: int, *, transactional: bool) -> bytes:
    """The batch as this producer's, at this place in its sequence."""
    sealed = bytearray(data)
    if transactional:
        (attributes,) = _attributes.unpack_from(sealed, _ATTRIBUTES_AT)
        _attributes.pack_into(sealed, _ATTRIBUTES_AT, attributes | _TRANSACTIONAL)
    _producer.pack_into(sealed, _PRODUCER_AT, producer, epoch, sequence)
    _crc.pack_into(sealed, _CRC_AT, calc_crc32c(bytes(memoryview(sealed)[_ATTRIBUTES_AT:])))
    return bytes(sealed)
