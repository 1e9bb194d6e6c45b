"""Which partition a key belongs to: Kafka's default partitioner. One rule: everything that places a key asks here.

Producers, re-keys, table routing, queries and the Spark backfill agree on a key's task because they share this rule:
`(murmur2(key) & 0x7fffffff) % partitions`, the rule of Java's producers. A record without a key has no rule in Kafka
(producers pick at random or stick to one); ours is a number the caller gives: a task's own partition for what a
processor sends (so one input always gives one placement), a running number for a producer (round robin).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_CACHED_KEYS = 1 << 15  # the hash is a Python loop, some microseconds; hot keys should not pay it


@lru_cache(maxsize=256)
def _words(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """What reads the first `count` words of a key."""
    return struct.Struct(f"<{count}I").unpack_from


def murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 with Kafka's seed, as a signed 32-bit number."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for word in _words(words)(data):  # few operations of each: for keys that come once every record pays this
        k = word * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[words << 2 :], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h - 0x100000000 if h & 0x80000000 else h


_cached = lru_cache(maxsize=_CACHED_KEYS)(murmur2)


def partition_of(key: bytes | None, partitions: int, *, keyless: int = 0) -> int:
    """The partition of `key` among `partitions`; for a record without key `keyless % partitions` (see the module)."""
    if key is None:
        return keyless % partitions
    return (_cached(key) & 0x7FFFFFFF) % partitions
