"""The codec of record batches: what goes in comes out, from any position; damaged bytes are never believed."""

from __future__ import annotations

import struct

import pytest
from aiokafka import codec as codecs
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from state.errors import LogDamaged
from state.log import batches
from state.log.protocol import NewRecord, StoredRecord

BYTES = st.none() | st.binary(max_size=12)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)
RECORD = st.builds(NewRecord, BYTES, BYTES, st.integers(-3, 3) | st.integers(-(1 << 45), 1 << 45), HEADERS)


NO_TEXT = "?? name"


def no_text(data: bytes, codec: int = 0) -> bytes:
    """A batch in which what stands before the name is no UTF-8."""
    head, body = data[:61], data[61:]
    unpack, pack = {
        0: (bytes, bytes),
        1: (codecs.gzip_decode, codecs.gzip_encode),
        2: (codecs.snappy_decode, codecs.snappy_encode),
        3: (codecs.lz4_decode, codecs.lz4_encode),
        4: (codecs.zstd_decode, codecs.zstd_encode),
    }[codec]
    changed = bytearray(head + pack(bytes(unpack(body)).replace(NO_TEXT.encode(), b"\xff\xfe name")))
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, calc_crc32c(bytes(changed[21:])))
    return bytes(changed)


@given(records=st.lists(RECORD, max_size=30), base=st.integers(0, 1 << 50), skip=st.integers(0, 35))
def test_records_come_back_as_they_were(records: list[NewRecord], base: int, skip: int) -> None:
    data = batches.encode(records, base)
    wanted = [
        StoredRecord(base + number, one.timestamp_ms, one.key, one.value, one.headers)
        for number, one in enumerate(records)
    ]
    assert batches.decode(data, 0) == wanted
    assert batches.decode(data, base + skip) == wanted[skip:]
    assert batches.pairs(data, base + skip) == [(one.key, one.value) for one in wanted[skip:]]
    last = {one.key: one.value for one in wanted[skip:] if one.key is not None}
    assert batches.last_values(data, base + skip) == last


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=12))
def test_large_lists_become_several_batches(sizes: list[int]) -> None:
    records = [NewRecord(b"k", b"v" * size, number) for number, size in enumerate(sizes)]
    built = batches.build(records)
    assert sum(batch.records for batch in built) == len(records)
    assert all(len(batch.data) <= batches.BATCH_BYTES_MAX or batch.records == 1 for batch in built)
    found = batches.decode(batches.encode(records, 5), 0)
    assert [(one.offset, len(one.value or b"")) for one in found] == list(enumerate(sizes, 5))


def test_many_small_records_become_batches_of_a_thousand() -> None:
    built = batches.build([NewRecord(b"k", b"v", 0)] * 2_500)
    assert [batch.records for batch in built] == [1_000, 1_000, 500]


@given(
    keep=st.lists(st.tuples(st.integers(0, 500), RECORD), min_size=1, max_size=20, unique_by=lambda pair: pair[0]),
    base=st.integers(0, 1 << 40),
    rest=st.integers(0, 9),
)
def test_a_sparse_batch_keeps_offsets_and_span(keep: list[tuple[int, NewRecord]], base: int, rest: int) -> None:
    records = [
        StoredRecord(base + delta, one.timestamp_ms, one.key, one.value, one.headers)
        for delta, one in sorted(keep, key=lambda pair: pair[0])
    ]
    stop = records[-1].offset + 1 + rest
    batch = batches.build_sparse(records, base, stop)
    assert batches.decode(batch.data, 0) == records
    (header,) = batches.headers(batch.data)
    assert (header.base, header.next, header.records) == (base, stop, len(records))


def test_control_batches_take_an_offset_and_give_no_record() -> None:
    first, last = [NewRecord(b"a", b"1", 0)], [NewRecord(b"b", b"2", 0)]
    data = batches.encode(first, 0) + batches.build_control(1, True, 0) + batches.encode(last, 2)
    assert [(one.offset, one.key) for one in batches.decode(data, 0)] == [(0, b"a"), (2, b"b")]
    assert batches.decode(data, 1) == batches.decode(data, 2)
    assert [header.control for header in batches.headers(data)] == [False, True, False]
    assert [header.next for header in batches.headers(data)] == [1, 2, 3]


DATA = batches.encode([NewRecord(b"key-%d" % number, b"value" * 3, number) for number in range(20)], 100)


@given(cut=st.integers(1, len(DATA) - 1))
def test_cut_bytes_are_refused(cut: int) -> None:
    for reading in (batches.decode, batches.pairs, batches.last_values):
        with pytest.raises(LogDamaged):
            reading(DATA[:cut], 0)
        with pytest.raises(LogDamaged):
            reading(DATA + DATA[:cut], 0)


@given(at=st.integers(0, len(DATA) - 1), flip=st.integers(1, 255))
def test_altered_bytes_are_refused(at: int, flip: int) -> None:
    """Everything but the base offset and the leader epoch, which no checksum covers."""
    if at < 8 or 12 <= at < 16:
        return
    altered = bytearray(DATA)
    altered[at] ^= flip
    for position in (0, 110, 1_000):
        with pytest.raises(LogDamaged):
            batches.decode(bytes(altered), position)


def test_nothing_is_nothing() -> None:
    assert batches.encode([], 7) == b""
    assert batches.decode(b"", 7) == []
    assert batches.build([]) == []


def test_control_batches_are_checked_for_length_too() -> None:
    with pytest.raises(LogDamaged):
        batches.decode(batches.build_control(0, True, 0)[:-1], 0)


def test_batches_are_cut_by_what_the_log_takes_and_one_record_may_be_larger() -> None:
    small, large = [NewRecord(b"k%d" % number, b"v" * 400, 0) for number in range(20)], NewRecord(b"k", b"v" * 3_000, 0)
    built = batches.build([*small[:10], large, *small[10:]], 2_000)
    assert [batch.records for batch in built if len(batch.data) > 2_000] == [1]
    assert sum(batch.records for batch in built) == 21 and len(built) >= 6


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_names_of_headers_that_are_no_text_are_read(codec: int) -> None:
    """Several clients write any bytes there, and brokers take them. Keys and values that are no text stay as they are."""
    records = [NewRecord(b"\xff%d" % number, b"\xfe" * 40, number, ((NO_TEXT, b"\xff"),)) for number in range(9)]
    data = no_text(batches.build(records, codec=codec)[0].data, codec)
    found = batches.decode(data, 2)
    assert [one.headers for one in found] == [(("\ufffd\ufffd name", b"\xff"),)] * 7
    assert [(one.offset, one.timestamp_ms, one.key, one.value) for one in found] == [
        (number, number, b"\xff%d" % number, b"\xfe" * 40) for number in range(2, 9)
    ]
    assert batches.pairs(data, 2) == [(one.key, one.value) for one in found]
