"""How a store's bytes are laid out under their keys, shared by stores and snapshots.

One rule: data keys carry the prefix 1 and what the store says of itself lies under 0, so that the two can never meet
and the reserved keys come first in every sorted file. Callers see neither prefix.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from state.errors import StoreDamaged

DATA = b"\x01"
DATA_END = b"\x02"
OFFSET_KEY = b"\x00offset"
STAMP_KEY = b"\x00stamp"

_OFFSET = struct.Struct(">qq")


def pack_offset(offset: int, time_ms: int) -> bytes:
    """The changelog position, and when the store last held all of it: what is older than the deletions that a changelog keeps
    cannot be trusted."""
    return _OFFSET.pack(offset, time_ms)


def unpack_offset(value: bytes | None, where: object) -> tuple[int, int]:
    """(0, 0) for a store that has never been written. Raises StoreDamaged."""
    if value is None:
        return 0, 0
    if len(value) != _OFFSET.size:
        raise StoreDamaged(f"the store {where} has an offset of {len(value)} bytes: wipe it and restore it")
    offset, time_ms = _OFFSET.unpack(value)
    return offset, time_ms


def pack_stamp(stamp: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({key: stamp[key] for key in sorted(stamp) if key != "time_ms"})


def unpack_stamp(value: bytes, where: object) -> dict[str, str]:
    """What `pack_stamp` packed. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(value, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"the store {where} has an unreadable stamp ({error}): wipe it and restore it") from error
