"""The partitions of many keys at once: the rule of `pipeline.values.partitioner`, over numpy.

One rule: what it says of a key is what `partition_of` says; keys of one length are hashed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_SEED, _M = 0x9747B28C, np.uint32(0x5BD1E995)


def partitions_of(keys: pa.Array, count: int) -> Any:
    """The partition of each key of a binary array without nulls, as numpy's int64."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    data = keys.buffers()[2]
    text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    if len(keys) and lengths[0] and (lengths == lengths[0]).all():
        hashes = _hashes(text[offsets[0] : offsets[-1]].reshape(len(keys), lengths[0]))
    else:
        hashes = np.empty(len(keys), np.uint32)
        for length in np.unique(lengths):
            chosen = lengths == length
            hashes[chosen] = _hashes(text[starts[chosen][:, None] + np.arange(length)])
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count


def _hashes(rows: Any) -> Any:
    """murmur2 of keys of one length, a row of bytes each."""
    length = rows.shape[1]
    words = length >> 2
    hashed = np.full(len(rows), np.uint32(_SEED ^ length), np.uint32)
    blocks = np.ascontiguousarray(rows[:, : words * 4]).view("<u4") if words else np.empty((len(rows), 0), np.uint32)
    for number in range(words):
        k = blocks[:, number] * _M
        k ^= k >> np.uint32(24)
        hashed = (hashed * _M) ^ (k * _M)
    rest = rows[:, words * 4 :]
    if rest.shape[1]:
        for place in range(rest.shape[1]):
            hashed ^= rest[:, place].astype(np.uint32) << np.uint32(8 * place)
        hashed *= _M
    hashed ^= hashed >> np.uint32(13)
    hashed *= _M
    return hashed ^ (hashed >> np.uint32(15))
