"""Keeps the garbage collector still while public objects are made. One rule: it is put back as it was.

An assignment of a million partitions is a million tuples, all of them kept. Python's collector looks through them again
and again while they come into being, finds nothing, and takes four times as long as the assignment.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collections inside, also when it fails."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
