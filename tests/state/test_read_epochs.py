"""A position is committed with the epoch of the last record before it."""

from __future__ import annotations

from state.log.kafka.read_epochs import ReadEpochs
from state.log.protocol import Partition

IN = Partition("in", 0)


def test_a_position_has_the_epoch_of_what_lies_before_it() -> None:
    read = ReadEpochs()
    assert read.before(IN, 5, 9) == 9, "nothing was read"
    for begin, end, epoch in ((5, 8, 1), (8, 10, 1), (10, 12, 3), (12, 14, 3)):
        read.given(IN, begin, end, epoch)
    assert [read.before(IN, position, 9) for position in (5, 6, 10, 11, 14, 15)] == [9, 1, 1, 3, 3, 9]
    read.given(IN, 14, 16, -1)
    assert [read.before(IN, position, 9) for position in (11, 16)] == [9, 9], (
        "the epoch of what lies between is not known"
    )


def test_what_others_have_read_since_has_no_epoch_of_this_reader() -> None:
    """A task that went, and came back behind an election: its position was committed with the epoch of its first time here, which
    ended long before it, so that the next start was refused as if records were lost."""
    read = ReadEpochs()
    read.given(IN, 0, 100, 5)
    assert read.before(IN, 100, 6) == 5
    assert read.before(IN, 500, 6) == 6
    read.given(IN, 500, 510, 6)
    assert [read.before(IN, position, 7) for position in (100, 500, 505)] == [7, 7, 6]
    read.given(IN, 7, 9, 8)
    assert [read.before(IN, position, 9) for position in (8, 9, 505)] == [8, 8, 9], (
        "it was read again from an earlier place"
    )
