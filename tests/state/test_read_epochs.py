"""A position is committed with the epoch of the last record before it."""

from __future__ import annotations

from state.log.kafka.read_epochs import ReadEpochs
from state.log.protocol import Partition

IN = Partition("in", 0)


def test_a_position_has_the_epoch_of_what_lies_before_it() -> None:
    read = ReadEpochs()
    assert read.before(IN, 5, 9) == 9, "nothing was read"
    for position, epoch in ((5, 1), (8, 1), (10, 3), (12, -1), (14, 3)):
        read.given(IN, position, epoch)
    assert [read.before(IN, position, 9) for position in (5, 6, 10, 11, 20)] == [9, 1, 1, 3, 3]
    read.given(IN, 3, 1)
    read.given(IN, 15, 3)
    assert [read.before(IN, position, 9) for position in (3, 4, 10, 11)] == [9, 1, 1, 3], "another reader is not as far"
    read.given(IN, 7, 4)
    assert [read.before(IN, position, 9) for position in (7, 8, 20)] == [1, 4, 4], (
        "what was read again is of the later leader"
    )
