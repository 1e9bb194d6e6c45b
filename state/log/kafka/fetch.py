"""Fetch requests: their bytes, written and sliced by hand, and which batches of an answer hold committed records. Pure.

One rule: nothing is decoded here but headers. The answer's batches go on as they came; what is dropped is whole batches:
control batches, those of aborted transactions, and the last one where the broker cut it. aiokafka's structs take thirty
times as long for a request of 256 partitions. Source: Kafka's protocol, Fetch version 11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

from aiokafka.protocol.api import RequestHeader_v1, ResponseHeader_v0

_HEADER = struct.Struct(">iiiibii")  # replica, wait, least bytes, most bytes, isolation, session, its epoch
_WANTED = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start, most bytes
_GIVEN = struct.Struct(">ihqqqi")  # partition, error, high watermark, last stable, log start, aborted transactions
_ABORTED = struct.Struct(">qq")
_int32 = struct.Struct(">i")
_length = struct.Struct(">h")
_READ_COMMITTED = 1
_NO_SESSION = (0, -1)

_LENGTH_AT, _EPOCH_AT, _ATTRIBUTES_AT, _PRODUCER_AT, _RECORDS_AT = 8, 12, 21, 43, 61
_CONTROL, _TRANSACTIONAL = 0x20, 0x10
_qi = struct.Struct(">qi")
_hi = struct.Struct(">hi")
_q = struct.Struct(">q")


class Given(NamedTuple):
    """One partition of an answer. `stable_end` is where readers of committed data end; `aborted` are the transactions
    among the bytes that were, as producer id and first offset."""

    topic: str
    number: int
    code: int
    stable_end: int
    start: int
    aborted: list[tuple[int, int]]
    data: bytes


class FetchAnswer:
    """What a broker answers to a Fetch; stands where aiokafka's connection expects a response's class."""

    def __init__(self, code: int, given: list[Given], throttle_time_ms: int = 0) -> None:
        self.code = code
        self.given = given
        self.throttle_time_ms = throttle_time_ms

    @classmethod
    def decode(cls, stream: BytesIO) -> FetchAnswer:
        data, at = stream.getvalue(), stream.tell()
        (throttle_time_ms,) = _int32.unpack_from(data, at)
        (code,) = _length.unpack_from(data, at + 4)
        at += 10  # and the session
        given: list[Given] = []
        (topics,) = _int32.unpack_from(data, at)
        at += 4
        for _ in range(topics):
            (size,) = _length.unpack_from(data, at)
            name = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (partitions,) = _int32.unpack_from(data, at)
            at += 4
            for _ in range(partitions):
                number, error, _, stable_end, start, count = _GIVEN.unpack_from(data, at)
                at += _GIVEN.size
                aborted = [_ABORTED.unpack_from(data, at + one * _ABORTED.size) for one in range(max(count, 0))]
                at += max(count, 0) * _ABORTED.size + 4  # and the preferred replica
                (length,) = _int32.unpack_from(data, at)
                at += 4
                given.append(Given(name, number, error, stable_end, start, aborted, data[at : at + max(length, 0)]))
                at += max(length, 0)
        return cls(code, given, throttle_time_ms)


class FetchRequest:
    """Committed records of these partitions from these offsets on, by the cluster's names of topics."""

    API_KEY, API_VERSION, RESPONSE_TYPE = 1, 11, FetchAnswer

    def __init__(
        self, wanted: Mapping[str, Sequence[tuple[int, tuple[int, int]]]], wait_ms: int, max_bytes: int
    ) -> None:
        """`wanted`: by topic, number of the partition with offset and most bytes; `max_bytes` of the whole answer. A broker
        gives one batch at least, however large."""
        self._wanted = wanted
        self._wait_ms = wait_ms
        self._max_bytes = max_bytes

    def encode(self) -> bytes:
        pieces = [_HEADER.pack(-1, self._wait_ms, 1, self._max_bytes, _READ_COMMITTED, *_NO_SESSION)]
        pieces.append(_int32.pack(len(self._wanted)))
        pack = _WANTED.pack
        for topic, listed in self._wanted.items():
            name = topic.encode()
            pieces += (_length.pack(len(name)), name, _int32.pack(len(listed)))
            pieces += [pack(number, -1, offset, -1, most) for number, (offset, most) in listed]
        pieces.append(b"\0\0\0\0\0\0")  # no topics to forget, no rack
        return b"".join(pieces)

    def build_request_header(self, correlation_id: int, client_id: str) -> RequestHeader_v1:
        return RequestHeader_v1(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, stream: BytesIO) -> ResponseHeader_v0:
        return ResponseHeader_v0.decode(stream)


class Run(NamedTuple):
    """Neighbouring batches with committed records, as they came; reading goes on at `next`. No data: nothing but
    markers and aborted records up to there. `epoch`: of the leader that wrote the last of them."""

    data: bytes
    next: int
    epoch: int = -1


def committed(given: Given, position: int) -> list[Run]:
    """The committed batches of an answer to a fetch from `position`, and how far it goes."""
    data = given.data
    runs: list[Run] = []
    first = -1  # where the run under way begins
    at, reached, epoch = 0, position, -1
    for start, stop, last, keep in _judged(given, position):
        if keep and first < 0:
            first = start
        elif not keep and first >= 0:
            runs.append(Run(data[first:start], reached, epoch))
            first = -1
        at, reached = stop, max(reached, last + 1)
        (epoch,) = _int32.unpack_from(data, start + _EPOCH_AT)
    if first >= 0:
        runs.append(Run(data if (first, at) == (0, len(data)) else data[first:at], reached, epoch))
    elif reached > (runs[-1].next if runs else position):
        runs.append(Run(b"", reached, epoch))
    return runs


def _judged(given: Given, position: int) -> Iterator[tuple[int, int, int, bool]]:
    """Where each whole batch begins and stops, its last offset, and whether readers of committed data get it."""
    data, size, at = given.data, len(given.data), 0
    waiting = sorted(given.aborted, key=lambda one: one[1])
    aborting: set[int] = set()
    while size - at >= _RECORDS_AT:
        base, length = _qi.unpack_from(data, at)
        stop = at + 12 + length
        if stop > size:
            return
        attributes, delta = _hi.unpack_from(data, at + _ATTRIBUTES_AT)
        last = base + delta
        keep = last >= position
        if attributes & _TRANSACTIONAL:
            (producer,) = _q.unpack_from(data, at + _PRODUCER_AT)
            while waiting and waiting[0][1] <= last:
                aborting.add(waiting.pop(0)[0])
            if attributes & _CONTROL:
                aborting.discard(producer)  # its transaction ends here, one way or the other
                keep = False
            elif producer in aborting:
                keep = False
        elif attributes & _CONTROL:
            keep = False
        yield at, stop, last, keep
        at = stop


def first_bytes(data: bytes) -> int:
    """The size of the batch that `data` begins with; 0 where there is none."""
    return 12 + int(_qi.unpack_from(data, 0)[1]) if len(data) >= _qi.size else 0


def cut(run: Run, max_bytes: int) -> tuple[Run, Run | None]:
    """The first batches of a run, at least one and about `max_bytes`, and the rest of it."""
    data, at, reached, epoch = run.data, 0, run.next, run.epoch
    while at < len(data):
        base, length = _qi.unpack_from(data, at)
        (epoch,) = _int32.unpack_from(data, at + _EPOCH_AT)
        _, delta = _hi.unpack_from(data, at + _ATTRIBUTES_AT)
        at, reached = at + 12 + length, base + delta + 1
        if at >= max_bytes:
            break
    if at >= len(data):
        return run, None
    return Run(data[:at], reached, epoch), Run(data[at:], run.next, run.epoch)
