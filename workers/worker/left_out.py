"""Records that a policy of "skip" left out: lines for an operator.

One rule: nothing is left out in silence, and much of it does not flood the log: of each task and topic the first has a line when
it is committed, with what failed; those after it are counted, and have a line a minute later with the last of them, or at the worker's end
in order. The record loop reports each commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pipeline.calls.effects import LeftOut

log = logging.getLogger("orchestrator.records")
EVERY_S = 60.0
SHOWN = 500  # characters of what failed: an error of a decoder may show all of a record

Place = tuple[str, str]  # task, and topic, table or join


class LeftOutLines:
    """Of a worker; within its running loop."""

    def __init__(self) -> None:
        self._waiting: dict[Place, tuple[int, str]] = {}  # how many since the last line, and what the last of them was

    def committed(self, scope: str, left_out: Sequence[LeftOut]) -> None:
        """A commit of a task is in the log, with what it left out."""
        for one in left_out:
            if not one.why:
                continue
            place = scope, one.topic
            if place in self._waiting:
                self._waiting[place] = self._waiting[place][0] + 1, one.why
            else:
                self._waiting[place] = 1, one.why
                self._log(place)

    def end(self) -> None:
        """The worker ends in order: what was counted since the last line has its line now."""
        for place, (count, _) in list(self._waiting.items()):
            if count:
                self._log(place)

    def _log(self, place: Place) -> None:
        count, why = self._waiting.pop(place, (0, ""))
        if not count:
            return  # nothing in the last minute
        last = why if len(why) <= SHOWN else f"{why[:SHOWN]} ... ({len(why) - SHOWN} more)"
        if count == 1:
            log.warning('%s left a record of %s out (on_error="skip"): %s', *place, last)
        else:
            log.warning('%s left %d records of %s out (on_error="skip"), the last: %s', place[0], count, place[1], last)
        self._waiting[place] = 0, ""
        asyncio.get_running_loop().call_later(EVERY_S, self._log, place)
