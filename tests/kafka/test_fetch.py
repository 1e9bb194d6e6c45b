"""Fetch requests and answers against aiokafka's own structs, and which batches of an answer are handed out. No broker."""

from __future__ import annotations

import struct
from io import BytesIO

from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from hypothesis import given
from hypothesis import strategies as st

from state.log.batches import build, build_control, decode, place
from state.log.kafka.fetch import FetchAnswer, FetchRequest, Given, committed, cut
from state.log.kafka.producer import seal
from state.log.protocol import NewRecord


def test_a_request_is_the_protocols_to_the_byte() -> None:
    wanted = {"a": [(0, (5, 100)), (3, (7, 200))], "b": [(1, (0, 1 << 20))]}
    theirs = FetchRequest_v11(
        *(-1, 500, 1, 64 << 20, 1, 0, -1),
        [("a", [(0, -1, 5, -1, 100), (3, -1, 7, -1, 200)]), ("b", [(1, -1, 0, -1, 1 << 20)])],
        *([], ""),
    )
    assert FetchRequest(wanted, 500, 64 << 20).encode() == theirs.encode()


def test_an_answer_is_read_as_aiokafka_writes_it() -> None:
    partitions = [(0, 0, 9, 8, 1, [(70, 3), (71, 5)], -1, b"bytes"), (1, 6, -1, -1, -1, None, -1, None)]
    theirs = FetchResponse_v11(1_500, 0, 0, [("a", partitions), ("b", [])])
    stream = BytesIO(b"head" + theirs.encode())
    stream.read(4)
    answer = FetchAnswer.decode(stream)
    assert (answer.code, answer.throttle_time_ms) == (0, 1_500)
    assert answer.given == [Given("a", 0, 0, 8, 1, [(70, 3), (71, 5)], b"bytes"), Given("a", 1, 6, -1, -1, [], b"")]


class _Partition:
    """Writes what a broker would have: transactions of several producers, one batch after the other."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.first: dict[int, int] = {}
        self.aborted: list[tuple[int, int]] = []
        self.open: list[tuple[int, list[tuple[int, bytes]]]] = []
        self.written: dict[int, list[tuple[int, bytes]]] = {}
        self.committed: list[tuple[int, bytes]] = []

    def write(self, producer: int | None, values: list[bytes]) -> None:
        (batch,) = build([NewRecord(b"k", value, 1) for value in values])
        data = batch.data
        rows = list(enumerate(values, self.end))
        if producer is None:
            self.committed += rows
        else:
            data = seal(data, producer, 0, 0, transactional=True)
            self.first.setdefault(producer, self.end)
            self.written.setdefault(producer, []).extend(rows)
        self.data += place(data, self.end)
        self.end += len(values)

    def finish(self, producer: int, commit: bool) -> None:
        if producer not in self.first:
            return
        marker = bytearray(build_control(self.end, commit, 1))
        struct.pack_into(">q", marker, 43, producer)
        self.data += bytes(marker)
        self.end += 1
        first, rows = self.first.pop(producer), self.written.pop(producer)
        if commit:
            self.committed += rows
        else:
            self.aborted.append((producer, first))


def test_a_producer_goes_on_after_an_abort() -> None:
    """Its next transaction is read; what it wrote between two other producers' is not."""
    partition = _Partition()
    partition.write(1, [b"aborted"])
    partition.write(2, [b"theirs"])
    partition.finish(1, False)
    partition.write(1, [b"mine"])
    partition.finish(1, True)
    partition.finish(2, True)
    whole = Given("t", 0, 0, partition.end, 0, partition.aborted, partition.data)
    found = [record.value for run in committed(whole, 0) for record in decode(run.data, 0)]
    assert found == [b"theirs", b"mine"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([None, 1, 2]), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.sampled_from([1, 2]), st.booleans()),
    ),
    max_size=25,
)


@given(steps=STEPS, data=st.data())
def test_committed_records_are_handed_out_and_no_others(
    steps: list[tuple[str, int | None, int]], data: st.DataObject
) -> None:
    """Whatever transactions lie among each other, wherever reading begins, however the buffer is cut."""
    partition = _Partition()
    for number, (what, producer, much) in enumerate(steps):
        if what == "write":
            partition.write(producer, [b"%d-%d" % (number, one) for one in range(much)])
        elif producer is not None:
            partition.finish(producer, bool(much))
    for producer in list(partition.first):  # a broker sends nothing from the first open transaction on
        partition.finish(producer, False)
    position = data.draw(st.integers(0, partition.end))
    cut_at = data.draw(st.integers(0, len(partition.data)))
    whole = Given("t", 0, 0, partition.end, 0, partition.aborted, partition.data[:cut_at])
    most = data.draw(st.integers(1, 300))
    got: list[tuple[int, bytes | None]] = []
    reached = position
    for run in committed(whole, position):
        left = run
        while left is not None:
            one, left = cut(left, most)  # type: ignore[assignment]
            assert one.next > reached or (one.next == reached and not one.data)
            got += [(record.offset, record.value) for record in decode(one.data, reached)]
            reached = one.next
    assert got == sorted((offset, value) for offset, value in partition.committed if position <= offset < reached)
    if cut_at == len(partition.data) and position < partition.end:
        assert reached == partition.end
