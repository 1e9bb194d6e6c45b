"""When a restore will have caught up, from how it went lately.

One rule: positions and ends, never counts of records; and no promise from one sample. What is written meanwhile has to be
restored too, so the time is the lag over the difference of both rates; where writes outrun the restore there is none.
"""

from __future__ import annotations

from collections import deque

WINDOW_MS = 5_000
SAMPLE_MS = 200
SAMPLES_MIN = 4


class Recovery:
    """Samples of one copy over the last seconds."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque()

    def note(self, position: int, end: int, now_ms: int) -> None:
        """The copy stands at `position`, its changelog ends at `end`."""
        samples = self._samples
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
        gained = (last - first) - (last_end - first_end)  # over the same time: restored, less what was written
        return round(lag * (until - since) / gained) if gained > 0 else None
