"""Kafka's default partitioner: its published vectors, and agreement with aiokafka's on any bytes."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2  # type: ignore[import-untyped,unused-ignore]
from hypothesis import given
from hypothesis import strategies as st

from pipeline.values.partitioner import murmur2, partition_of

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("data", list(VECTORS))
def test_published_vectors(data: bytes) -> None:
    assert murmur2(data) == VECTORS[data]


@given(st.binary(max_size=64))
def test_agrees_with_aiokafka(data: bytes) -> None:
    assert murmur2(data) & 0xFFFFFFFF == aiokafka_murmur2(data) & 0xFFFFFFFF


@given(st.binary(max_size=16), st.integers(1, 100))
def test_partition_is_the_positive_hash(data: bytes, partitions: int) -> None:
    assert partition_of(data, partitions) == (murmur2(data) & 0x7FFFFFFF) % partitions


def test_without_key_the_caller_decides() -> None:
    assert [partition_of(None, 3, keyless=n) for n in range(5)] == [0, 1, 2, 0, 1]
