"""When a restore will have caught up, and what a hand-over would cost now, from how it went lately.

One rule: positions and ends, never counts of records; and no promise from one sample. While the owner goes on, what it
writes has to be restored too: the time to be level is the lag over the difference of both rates. Once it has released the
task nothing is written any more: the gap is the lag over the restore's own rate.
"""

from __future__ import annotations

from collections import deque

WINDOW_MS = 5_000
SAMPLE_MS = 200
SAMPLES_MIN = 4
SETTLED_MS = 1_000
STILL_MS = 30_000


class Recovery:
    """Samples of one copy over the last seconds."""

    __slots__ = ("_last_ms", "_moved_ms", "_position", "_samples")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque()
        self._position, self._moved_ms, self._last_ms = -1, 0, 0

    def forget(self) -> None:
        """What was read until now has a rate of its own, as a snapshot's."""
        self._samples.clear()
        self._position = -1

    def note(self, position: int, end: int, now_ms: int) -> None:
        """The copy stands at `position`, its changelog ends at `end`."""
        samples = self._samples
        if position != self._position:
            self._position, self._moved_ms = position, now_ms
        self._last_ms = now_ms
        if samples and (position < samples[-1][1] or end < samples[-1][2]):
            samples.clear()  # begun anew
        if samples and now_ms - samples[-1][0] < SAMPLE_MS:
            return
        samples.append((now_ms, position, end))
        while now_ms - samples[0][0] > WINDOW_MS and len(samples) > SAMPLES_MIN:
            samples.popleft()

    def eta_ms(self, position: int, end: int) -> int | None:
        """Time until the copy is level with its changelog; None where that is not known, or never at this rate."""
        lag = end - position
        if lag <= 0:
            return 0
        if len(self._samples) < SAMPLES_MIN:
            return None
        (since, first, first_end), (until, last, last_end) = self._samples[0], self._samples[-1]
        gained = (last - first) - (last_end - first_end)  # restored less written, over the same time
        return round(lag * (until - since) / gained) if gained > 0 else None

    def gap_ms(self, position: int, end: int) -> int | None:
        """How long the task would have no owner if its owner stopped now; None where that is not known."""
        if len(self._samples) < SAMPLES_MIN:
            return None
        (since, first, _), (until, last, _) = self._samples[0], self._samples[-1]
        return round(max(0, end - position) * (until - since) / (last - first)) if last > first else None

    def is_settled(self, position: int, end: int) -> bool:
        """Whether waiting no longer helps: the lag has stopped shrinking (by a tenth over the last seconds), for what is written
        meanwhile takes nine tenths of what is restored. A restore that is merely slow gains all that it reads."""
        if len(self._samples) < SAMPLES_MIN:
            return False
        (since, first, first_end), (until, last, last_end) = self._samples[0], self._samples[-1]
        is_outrun = 10 * (last_end - first_end) >= 9 * (last - first)
        return is_outrun and until - since >= SETTLED_MS and 10 * (end - position) >= 9 * (first_end - first)

    @property
    def stands_still(self) -> bool:
        """Whether it has read nothing for so long that nothing will come: it is as close as it will be. One that waits for its share of a
        limit reads now and then."""
        return self._last_ms - self._moved_ms >= STILL_MS
