"""Under which leaders the records were written that readers of this process were given.

One rule: a position is committed with the epoch of the last record before it, not with that of the leader at that moment: the
latter may lack that record, and has written others in its place; no start would see that they were never read. What was not read here
up to that position says nothing of it: others have read on since, behind another election.
"""

from __future__ import annotations

from typing import NamedTuple

from state.log.protocol import Partition

_KEPT = 16  # elections of a partition: positions are committed soon after they were read


class _Read(NamedTuple):
    """What was read without a gap, all of it written under one epoch."""

    begin: int
    end: int
    epoch: int


class ReadEpochs:
    """By partition: what was read last, up to where the latest reader is."""

    def __init__(self) -> None:
        self._read: dict[Partition, list[_Read]] = {}

    def given(self, partition: Partition, begin: int, end: int, epoch: int) -> None:
        """What lies between was written under this epoch; -1: that is not known."""
        read = self._read.get(partition, [])
        if not read or read[-1].end != begin or epoch < 0:
            # Another reader, or one that begins elsewhere. Two that take turns leave nothing, which is what is known then.
            read = []
        if epoch < 0:
            self._read.pop(partition, None)
        elif read and read[-1].epoch == epoch:
            self._read[partition] = [*read[:-1], read[-1]._replace(end=end)]
        else:
            self._read[partition] = [*read, _Read(begin, end, epoch)][-_KEPT:]

    def before(self, partition: Partition, position: int, otherwise: int) -> int:
        """The epoch of what lies before this position; `otherwise` where that was not read here."""
        found = (one.epoch for one in reversed(self._read.get(partition, ())) if one.begin < position <= one.end)
        return next(found, otherwise)
