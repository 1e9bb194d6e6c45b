"""The one codec of records: Kafka's v2 record batches, written and read over aiokafka's compiled classes.

One rule: bytes are judged here and nowhere else. A batch that is cut, altered (CRC) or of another format raises
LogDamaged, so no caller ever restores from half of a batch. Every log keeps batches; changelog replay, processing
and Spark read them through `decode` (records), `pairs` and `last_values` (keys and values, the fast walk of a restore).

A batch names its records by a base offset and deltas. The base is not covered by the CRC, so a batch can be built
first and placed (`place`) when the log knows its end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from state.errors import LogDamaged, LogUnusable, RecordTooLarge
from state.log import checks
from state.log.any_names import AnyNames
from state.log.entries import Entries, batches_of
from state.log.protocol import Headers, NewRecord, Partition, StoredRecord, TaskCommit

HEADER_BYTES = 61
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_MAX = 256 * 1024
MESSAGE_BYTES_MAX = 512 << 20  # of logs without a limit of their own: SQLite takes rows of 1,000,000,000 bytes

_Taken = TypeVar("_Taken")
_MAGIC = 2
_CONTROL = 0x20
_TRANSACTIONAL = 0x10
_LENGTH_AT, _MAGIC_AT, _CRC_AT, _ATTRIBUTES_AT, _DELTA_AT, _TIMESTAMPS_AT, _COUNT_AT = 8, 16, 17, 21, 23, 27, 57
_BEFORE_LENGTH_ENDS = 12
_int32 = struct.Struct(">i").unpack_from
_uint32 = struct.Struct(">I").unpack_from
_int64 = struct.Struct(">q").unpack_from
_timestamps = struct.Struct(">qq")
_int16 = struct.Struct(">h").unpack_from
_place = struct.Struct(">qi11xi").unpack_from  # base, length, delta, in one call: it is made for each row that is read


class Batch(NamedTuple):
    """A finished batch. `span` is how many offsets it takes, `records` how many of them hold a record."""

    data: bytes
    records: int
    span: int


class Header(NamedTuple):
    """The part of a batch that says where it lies. `start` and `stop` are places in the bytes, not offsets."""

    start: int
    stop: int
    base: int
    next: int
    records: int
    control: bool


# ------------------------------------------------------------------ writing


def build(
    records: Sequence[NewRecord],
    max_bytes: int = BATCH_BYTES_MAX,
    *,
    cut_bytes: int = BATCH_BYTES_MAX,
    cut_records: int = BATCH_RECORDS_MAX,
    codec: int = 0,
) -> list[Batch]:
    """Batches for `records` with base offset 0 each, none larger than the limits unless one record alone is. A log that
    rewrites batches keeps to small ones (`cut_bytes`, `cut_records`); a broker takes any below its own limit. `codec`: as
    Kafka numbers them; 0 is none, and a batch that it does not make smaller is left as it is."""
    max_bytes = min(max_bytes, cut_bytes)
    if isinstance(records, Entries) and codec == 0:
        made = batches_of(records, max_bytes, cut_records)
        if made is not None:
            return [Batch(data, count, count) for data, count in made]
    batches: list[Batch] = []
    count = len(records)
    at = 0
    while at < count:
        builder = DefaultRecordBatchBuilder(_MAGIC, codec, 0, -1, -1, -1, max_bytes)
        append = builder.append
        chosen = records[at : at + cut_records]
        shift = _shift(chosen[0].timestamp_ms)
        delta = 0
        for one in chosen:
            if append(delta, one.timestamp_ms + shift, one.key, one.value, list(one.headers)) is None:  # full
                break
            delta += 1
        batches.append(Batch(bytes(_shift_back(builder.build(), shift)), delta, delta))
        at += delta
    return batches


def build_all(records: Mapping[Partition, Sequence[NewRecord]], max_bytes: int) -> dict[Partition, list[Batch]]:
    """`build` for each partition that has any records. Raises RecordTooLarge for one that alone exceeds `max_bytes`."""
    built = {partition: build(listed, max_bytes) for partition, listed in records.items() if listed}
    for partition, listed in built.items():
        check_sizes(partition, listed, max_bytes)
    return built


def check_sizes(partition: Partition, built: Sequence[Batch], max_bytes: int) -> None:
    """Raises RecordTooLarge for a batch of one record that exceeds `max_bytes`."""
    index = 0
    for batch in built:
        if len(batch.data) > max_bytes:
            raise checks.too_large(partition, index, len(batch.data), max_bytes)
        index += batch.span


def build_commit(tasks: Sequence[TaskCommit], max_bytes: int) -> dict[Partition, list[Batch]]:
    """The records of all tasks as batches. Raises RecordTooLarge, which names the scope."""
    try:
        return build_all(checks.merged(tasks), max_bytes)
    except RecordTooLarge as error:
        raise checks.of_scope(error, tasks) from None


def build_sparse(records: Sequence[StoredRecord], base: int, next_offset: int) -> Batch:
    """One batch that keeps the offsets of `records` (all in base <= offset < next_offset), placed at `base`.

    What compaction leaves: gaps stay gaps, and the span goes on to `next_offset` as before.
    """
    size = sum(len(record.key or b"") + len(record.value or b"") + 64 for record in records) + HEADER_BYTES
    size += sum(len(name) * 4 + len(value) + 16 for record in records for name, value in record.headers)
    builder = DefaultRecordBatchBuilder(_MAGIC, 0, 0, -1, -1, -1, size)
    shift = _shift(records[0].timestamp_ms)
    for one in records:
        if builder.append(one.offset - base, one.timestamp_ms + shift, one.key, one.value, list(one.headers)) is None:
            raise AssertionError(f"a batch of {size} bytes was too small for record {one.offset}")
    data = _shift_back(builder.build(), shift)
    struct.pack_into(">i", data, _DELTA_AT, next_offset - base - 1)
    _seal(data)
    return Batch(place(data, base), len(records), next_offset - base)


def build_control(base: int, committed: bool, timestamp_ms: int) -> bytes:
    """A transaction marker as a broker leaves one behind every transaction: one offset, no record."""
    builder = DefaultRecordBatchBuilder(_MAGIC, 0, 1, 0, 0, -1, 1024)
    builder.append(0, timestamp_ms, struct.pack(">HH", 0, int(committed)), struct.pack(">HI", 0, 0), [])
    data = builder.build()
    struct.pack_into(">h", data, _ATTRIBUTES_AT, _CONTROL | _TRANSACTIONAL)
    _seal(data)
    return place(data, base)


def place(data: bytes | bytearray, base_offset: int) -> bytes:
    """The same batch at another base offset (not covered by the CRC)."""
    return struct.pack(">q", base_offset) + data[8:]


def largest_time_ms(data: bytes) -> int:
    """The latest time of the records of a batch, as its header has it: what brokers keep it by."""
    largest: int = _timestamps.unpack_from(data, _TIMESTAMPS_AT)[1]
    return largest


def encode(records: Sequence[NewRecord], base_offset: int) -> bytes:
    """Consecutive batches of `records`, the first record at `base_offset`."""
    pieces: list[bytes] = []
    for batch in build(records):
        pieces.append(place(batch.data, base_offset))
        base_offset += batch.span
    return b"".join(pieces)


def _shift(first_timestamp_ms: int) -> int:
    """The builder takes a first timestamp of -1 for none yet, and would give that record the next one's."""
    return 1 if first_timestamp_ms == -1 else 0


def _shift_back(data: bytearray, shift: int) -> bytearray:
    """Records hold deltas, so the two timestamps in the header are all there is to correct."""
    if shift:
        first, largest = _timestamps.unpack_from(data, _TIMESTAMPS_AT)
        _timestamps.pack_into(data, _TIMESTAMPS_AT, first - shift, largest - shift)
        _seal(data)
    return data


def _seal(data: bytearray) -> None:
    struct.pack_into(">I", data, _CRC_AT, calc_crc32c(bytes(data[_ATTRIBUTES_AT:])))


# ------------------------------------------------------------------ reading


def headers(data: bytes) -> Iterator[Header]:
    """Where the batches in `data` lie. Raises LogDamaged where the bytes do not add up."""
    at, size = 0, len(data)
    while at < size:
        if size - at < HEADER_BYTES:
            raise LogDamaged(f"record batch cut off at byte {at} of {size}: {ADVICE}")
        if data[at + _MAGIC_AT] != _MAGIC:
            raise LogDamaged(f"record batch at byte {at} has format {data[at + _MAGIC_AT]}, not {_MAGIC}: {ADVICE}")
        stop = at + _BEFORE_LENGTH_ENDS + cast(int, _int32(data, at + _LENGTH_AT)[0])
        if stop > size or stop - at < HEADER_BYTES:
            raise LogDamaged(f"record batch at byte {at} claims to end at byte {stop} of {size}: {ADVICE}")
        base: int = _int64(data, at)[0]
        delta: int = _int32(data, at + _DELTA_AT)[0]
        count: int = _int32(data, at + _COUNT_AT)[0]
        control = bool(_int16(data, at + _ATTRIBUTES_AT)[0] & _CONTROL)
        yield Header(at, stop, base, base + delta + 1, count, control)
        at = stop


def stored(data: object, base: object, next_offset: object, lowest: int = 0) -> bytes:
    """`data` where it is the one batch of these offsets, as a log has it in a row of its own, and begins at `lowest` or behind it. No CRC
    covers the base, and a row or an index that was altered may lead to the batch of another row. Otherwise a batch there that does not
    match its checksum: who reads this partition gets LogDamaged, and who reads others goes on."""
    if isinstance(data, bytes) and len(data) >= HEADER_BYTES:
        first, length, delta = _place(data)
        if lowest <= first == base and first + delta + 1 == next_offset and len(data) == _BEFORE_LENGTH_ENDS + length:
            return data
    return _damaged(base if isinstance(base, int) else 0)


def missing(base: int, next_offset: int) -> bytes:
    """Stands where a log has lost its batches of these offsets, as an index that is damaged loses rows: who reads on gets LogDamaged."""
    return _damaged(base, next_offset - base, _MISSING)


def _damaged(base: int, span: int = 1, count: int = 0) -> bytes:
    data = bytearray(HEADER_BYTES)
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, _DELTA_AT, min(span, 1 << 31) - 1)
    struct.pack_into(">i", data, _COUNT_AT, count)
    struct.pack_into(">i", data, _LENGTH_AT, HEADER_BYTES - _BEFORE_LENGTH_ENDS)
    data[_MAGIC_AT] = _MAGIC
    _seal(data)
    data[_CRC_AT] ^= 0xFF
    return bytes(data)


def frame(data: bytes, start: int) -> tuple[int, int, int, int]:
    """What stands before the records of the batch that begins at `start`: attributes, checksum, first and largest timestamp."""
    attributes: int = _int16(data, start + _ATTRIBUTES_AT)[0]
    crc: int = _uint32(data, start + _CRC_AT)[0]
    first, largest = _timestamps.unpack_from(data, start + _TIMESTAMPS_AT)
    return attributes, crc, first, largest


def _unread_codec(error: Exception) -> LogUnusable:
    return LogUnusable(
        f"a record batch is compressed, and what reads it is not installed ({error}): install the extra 'kafka'"
    )


ADVICE = "the bytes are not what was written; restore from another copy"
_MISSING = -1  # records of a batch that is not there


def damage(header: Header) -> LogDamaged:
    """What is wrong with a batch that does not match its checksum."""
    if header.records == _MISSING:
        return LogDamaged(
            f"the records of offsets {header.base} to {header.next - 1} are not found where the log has them: its file is damaged; "
            "`orchestrator log check` says how"
        )
    return LogDamaged(f"record batch at offset {header.base} does not match its checksum: {ADVICE}")


def _batches(data: bytes, from_position: int) -> Iterator[tuple[int, bytes, Iterable[Any]]]:
    """Base offset, bytes and records of each batch that holds data from `from_position` on.

    The CRC comes first, also for batches that are skipped: what says that they may be is covered by it.
    """
    for header in headers(data):
        whole = data if header.stop - header.start == len(data) else data[header.start : header.stop]
        batch = DefaultRecordBatch(whole)
        if not batch.validate_crc():
            raise damage(header)
        if header.next > from_position and header.records and not header.control:
            yield header.base, whole, batch


def damage_in(data: bytes) -> str:
    """What is wrong with these batches, as far as their bytes say without being decoded; "" where nothing is."""
    try:
        for _ in _batches(data, 0):
            pass
    except (LogDamaged, CorruptRecordException) as error:
        return str(error)
    return ""


def _read(
    data: bytes, from_position: int, taken: Callable[[Iterable[Any], int], list[_Taken]]
) -> Iterator[tuple[int, list[_Taken]]]:
    """What is `taken` of each batch and its base offset. Raises LogDamaged."""
    try:
        for base, whole, batch in _batches(data, from_position):
            try:
                found = taken(batch, base)
            except UnicodeDecodeError:  # brokers take any name of a header, and several clients write any
                found = taken(AnyNames(whole), base)
            yield base, found
    except UnsupportedCodecError as error:
        raise _unread_codec(error) from error
    except CorruptRecordException as error:
        raise LogDamaged(f"record batch cannot be read ({error}): {ADVICE}") from error


def _stored(batch: Iterable[Any], _: int) -> list[StoredRecord]:
    return [
        StoredRecord(
            record.offset, record.timestamp, record.key, record.value, _headers(h) if (h := record.headers) else ()
        )
        for record in batch
    ]


def decode(data: bytes, from_position: int) -> list[StoredRecord]:
    """The records of `data` from `from_position` on, in offset order; control batches are skipped. In a header's name that is no
    UTF-8 what is wrong is replaced, as Java's client does it. Raises LogDamaged."""
    found: list[StoredRecord] = []
    for base, records in _read(data, from_position, _stored):
        found += records if base >= from_position else [one for one in records if one.offset >= from_position]
    return found


def _headers(found: list[tuple[str, bytes | None]]) -> Headers:
    return tuple((name, value or b"") for name, value in found) if found else ()


def pairs(data: bytes, from_position: int) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of each record from `from_position` on, in offset order: several times faster than `decode`.
    Raises LogDamaged."""

    def taken(batch: Iterable[Any], base: int) -> list[tuple[bytes | None, bytes | None]]:
        if base >= from_position:
            return [(record.key, record.value) for record in batch]
        return [(record.key, record.value) for record in batch if record.offset >= from_position]

    found: list[tuple[bytes | None, bytes | None]] = []
    for _, some in _read(data, from_position, taken):
        found += some
    return found


def last_values(data: bytes, from_position: int) -> dict[bytes, bytes | None]:
    """The last value of each key from `from_position` on (None: deleted). Records without a key do not count."""
    found = dict(pairs(data, from_position))
    found.pop(None, None)
    return cast("dict[bytes, bytes | None]", found)
