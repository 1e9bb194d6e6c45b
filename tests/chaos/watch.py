"""How long nothing was committed: looks at the positions all the time, past the proxies.

One rule: only time in which input waits and a broker is there counts: how long a killed broker needs to come back is not the
group's doing, what follows is. What was broken meanwhile is named beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from state.errors import StateError
from state.log.protocol import Log, Partition

LOOK_S = 0.05


@dataclass
class Stall:
    """The longest one so far, and what happened in it."""

    seconds: float = 0.0
    meanwhile: str = ""


class Watch:
    """Runs until cancelled. `broken` says what events are under way, `is_away` whether the only broker is."""

    def __init__(
        self,
        log: Log,
        application: str,
        inputs: list[Partition],
        broken: Callable[[], list[str]],
        is_away: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._log = log
        self._application = application
        self._inputs = inputs
        self._broken = broken
        self._is_away = is_away
        self._note = note
        self.longest = Stall()
        self._met: dict[str, None] = {}

    async def run(self) -> None:
        before, last = -1, time.monotonic()
        while True:
            self._met |= dict.fromkeys(self._broken())
            if self._is_away():
                last = time.monotonic()
                await asyncio.sleep(LOOK_S)
                continue
            try:
                ends = sum((await self._log.ends(self._inputs)).values())
                done = sum((await self._log.positions(self._application, self._inputs)).values())
            except StateError:
                await asyncio.sleep(LOOK_S)  # no broker: nothing is committed either
                continue
            now = time.monotonic()
            if done != before or done >= ends:
                if before >= 0 and now - last > self.longest.seconds:
                    self.longest = Stall(now - last, ", ".join(self._met) or "nothing")
                    self._note(f"nothing was committed for {now - last:.1f} s")
                before, last = done, now
                self._met = {}
            await asyncio.sleep(LOOK_S)
