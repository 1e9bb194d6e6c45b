"""Memory that a round of upkeep does not need any more goes back to the system.

One rule: nothing depends on it. glibc keeps for a thread what that thread does not use any more, where something behind it stays in use, and
the rounds run in one thread or another: each came to hold as much as a compaction takes at most. `LogUpkeep` asks after rounds
that did something, off the loop: it takes milliseconds.
"""

from __future__ import annotations


def give_back() -> bool:
    """Whether this system's allocator was asked; False where it has no such call (musl, macOS)."""
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    trim(0)
    return True
