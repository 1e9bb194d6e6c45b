"""Under which leaders the records were written that readers of this process were given.

One rule: a position is committed with the epoch of the last record before it, not with that of the leader at that moment: the
latter may lack that record, and has written others in its place; no start would see that they were never read.
"""

from __future__ import annotations

from state.log.protocol import Partition

_KEPT = 16  # elections of a partition: positions are committed soon after they were read


class ReadEpochs:
    """By partition: where what was read begins of each epoch."""

    def __init__(self) -> None:
        self._begun: dict[Partition, list[tuple[int, int]]] = {}

    def given(self, partition: Partition, position: int, epoch: int) -> None:
        """What follows this position was written under this epoch, where that is known."""
        begun = self._begun.get(partition, [])
        if epoch < 0 or (begun and begun[-1][1] == epoch and begun[-1][0] <= position):
            return
        # Several readers may read one partition. Epochs grow with positions: what lies behind this one under an earlier epoch is gone.
        left = [(at, one) for at, one in begun if at < position or one > epoch]
        if not any(one == epoch for at, one in left):
            left.append((position, epoch))
        self._begun[partition] = sorted(left)[-_KEPT:]

    def before(self, partition: Partition, position: int, otherwise: int) -> int:
        """The epoch of what lies before this position; `otherwise` where nothing there was read."""
        found = (epoch for at, epoch in reversed(self._begun.get(partition, ())) if at < position)
        return next(found, otherwise)
