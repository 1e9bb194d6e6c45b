"""What a store writes at once, as a batch of RocksDB's.

One rule: a batch is taken by the call that writes it, so it is made anew where that is tried again. Used by `rocksdb`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from operator import is_, is_not
from typing import Any

from rocksdict import WriteBatch

from state.store.layout import DATA, OFFSET_KEY, STAMP_KEY, pack_offset, pack_stamp
from state.store.protocol import Range

RANGE_KEYS = 64  # deleted at once rather than one by one: what lies in ranges that are gone costs a look at each read


def stamped(stamp: Mapping[str, str]) -> Any:
    """Returns the batch of a new store: where it comes from."""
    batch = WriteBatch(raw_mode=True)
    batch.put(STAMP_KEY, pack_stamp(stamp))
    return batch


def changed(
    changes: Mapping[bytes, bytes | None],
    offset: int,
    time_ms: int,
    stamp: Mapping[str, str] | None,
    gone: Sequence[Range],
) -> Any:
    """Returns the batch of changed keys (None: deleted), ranges that are gone, the position, and the stamp where it has changed."""
    keys = sorted(changes)
    return in_order(keys, list(map(changes.__getitem__, keys)), offset, time_ms, stamp, gone)


def in_order(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    offset: int,
    time_ms: int,
    stamp: Mapping[str, str] | None,
    gone: Sequence[Range] = (),
) -> Any:
    """`changed` of keys that are in order, and their values. No line of Python for a key."""
    batch = WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    put(OFFSET_KEY, pack_offset(offset, time_ms))
    if stamp is not None:
        put(STAMP_KEY, pack_stamp(stamp))
    if None in values:
        deleted = list(compress(keys, map(is_, values, repeat(None))))
        for start, stop in gone:  # before all else: what was set there since stays
            first, last = bisect_left(deleted, start), bisect_left(deleted, stop)
            if last - first >= RANGE_KEYS:
                batch.delete_range(DATA + start, DATA + stop)
                del deleted[first:last]
        deque(map(delete, map(DATA.__add__, deleted)), maxlen=0)
        kept = list(map(is_not, values, repeat(None)))
        keys, values = list(compress(keys, kept)), list(compress(values, kept))
    deque(map(put, map(DATA.__add__, keys), values), maxlen=0)
    return batch
