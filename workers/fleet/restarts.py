"""What becomes of an instance of a fleet that has ended, and of its fleet.

One rule: what an instance meets alone costs the others nothing. One that is killed is started again; so is one that fails as it
starts (an app that cannot be imported while it is being replaced, a folder that it may not make) while others that have been
there for a while go on. What ends one that had begun to work is the app's, or the log's: the fleet ends with it.
Asked by fleet.py whenever a process of an instance is over.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from workers.spec import FAILED_APP, LOG_REPLACED, NO_SPACE

RESTART_S, RESTART_MAX_S = 0.5, 10.0
SETTLED_S = 5.0  # it has joined by then, or waits for others
_OF_A_START = (2, 3)  # an import that fails, an app that is refused: also where a worker is started again


class Then(Enum):
    """What follows."""

    OVER = "it left, or was asked to stop"
    LOG_GONE = "the fleet ends: its log was replaced"
    AGAIN = "it is started again at once"
    LATER = "it is started again, each time a little later"
    FAILED = "the fleet ends with it"


def follows(code: int, lasted_s: float, others: Collection[float]) -> Then:
    """`code`: as of `Handle.wait`, of a process that was there for `lasted_s`; `others`: for how long those have been there that run."""
    if code == 0:
        return Then.OVER
    if code == LOG_REPLACED:
        return Then.LOG_GONE
    if code < 0:
        return Then.AGAIN
    if code == NO_SPACE and others:
        return Then.LATER
    is_of_a_start = code in _OF_A_START or (code == 1 and lasted_s < SETTLED_S)
    if is_of_a_start and max(others, default=0.0) >= SETTLED_S:
        return Then.LATER
    return Then.FAILED


def code_of_fleet(code: int) -> int:
    """The exit code of a fleet that ends with an instance."""
    return 1 if code in (FAILED_APP, NO_SPACE) else code


def later(pause_s: float, then: Then) -> float:
    """Before the next try but one."""
    return min(RESTART_MAX_S, pause_s * 2) if then is Then.LATER else RESTART_S
