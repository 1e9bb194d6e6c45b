"""Records of batches in columns, and batches of a table's writes. Law: the same as record by record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.errors import LogDamaged
from state.log import batches
from state.log.columns import columns
from state.log.entries import Entries
from state.log.protocol import NewRecord

BYTES = st.one_of(st.none(), st.binary(max_size=3), st.integers(0, 9_000).map(bytes))
RECORDS = st.lists(
    st.builds(
        NewRecord,
        BYTES,
        BYTES,
        st.integers(0, 1 << 50),
        st.sampled_from([(), (("h", b"x"),), (("a", b""), ("a", b"y" * 70))]),
    ),
    max_size=30,
)


def same(data: bytes, from_position: int) -> None:
    found, expected = columns(data, from_position), batches.decode(data, from_position)
    assert found is not None
    assert found.keys.to_pylist() == [one.key for one in expected]
    assert found.values.to_pylist() == [one.value for one in expected]
    assert found.timestamps.tolist() == [one.timestamp_ms for one in expected]
    assert found.offsets.tolist() == [one.offset for one in expected]
    assert list(found.rows()) == expected


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=4), st.integers(0, 200), st.integers(0, 60))
def test_columns_are_what_decode_gives(parts: list[list[NewRecord]], base: int, skipped: int) -> None:
    data, at = b"", base
    for part in parts:
        data += batches.encode(part, at)
        at += len(part)
    same(data, base + skipped)


@pytest.mark.parametrize("width", [1, 90, 20_000])
@pytest.mark.parametrize("more", [1, 64, 8_192])
def test_runs_of_one_length_and_what_lies_between(width: int, more: int) -> None:
    """Runs are found at once, whatever breaks them: another length (by 64 and 8,192 the first bytes that say it are the
    same), offsets and times that take a byte more."""
    records = [
        NewRecord(b"k%04d" % n, bytes(width + more * (n % 97 == 0)), 1_000 + n * (500 if n > 700 else 1))
        for n in range(1_500)
    ]
    same(batches.encode(records, 3), 0)


def test_gaps_markers_and_the_time_of_the_log() -> None:
    kept = batches.decode(batches.encode([NewRecord(b"k%d" % n, b"v", n) for n in range(20)], 0), 0)[::3]
    sparse = batches.build_sparse(kept, 0, 40).data
    data = sparse + batches.build_control(40, True, 5) + batches.encode([NewRecord(b"z", None, 9)], 41)
    same(data, 0)
    same(data, 7)


def test_a_compressed_batch_is_left_to_who_reads_records() -> None:
    (batch,) = batches.build([NewRecord(b"k", b"v" * 1_000, 1)] * 50, codec=1)
    assert columns(batch.data, 0) is None


@pytest.mark.parametrize("place", [10, 30, 62, 100, -1])
def test_damage_is_seen(place: int) -> None:
    data = bytearray(batches.encode([NewRecord(b"key", b"value" * 5, 1)] * 20, 0))
    data[place] ^= 0xFF
    with pytest.raises(LogDamaged):
        columns(bytes(data), 0)


@settings(deadline=None)
@given(
    st.dictionaries(st.binary(max_size=20), st.one_of(st.none(), st.binary(max_size=20)), max_size=20),
    st.integers(0, 4),
    st.sampled_from([150, 1 << 20]),
)
def test_entries_are_built_as_their_records(writes: dict[bytes, bytes | None], kinds: int, most: int) -> None:
    if kinds:  # of values, and two of keys
        values = (b"12345678", None, b"1", b"")[:kinds]
        writes = {b"%0*d" % (8 + n % 3 // 2, n): values[n % kinds] for n in range(len(writes) * 70)}
    made = batches.build(Entries(writes, 77), most)
    expected = batches.build([NewRecord(key, value, 77) for key, value in writes.items()], most)
    found = [record for batch in made for record in batches.decode(batch.data, 0)]
    assert [(one.key, one.value, one.timestamp_ms) for one in found] == [(k, v, 77) for k, v in writes.items()]
    assert sum(batch.records for batch in made) == len(writes)
    assert all(len(batch.data) <= most or batch.records == 1 for batch in made)
    if most > 1_000:
        assert made == expected
    assert list(Entries(writes, 77)) == [NewRecord(k, v, 77) for k, v in writes.items()] == Entries(writes, 77)[:]
