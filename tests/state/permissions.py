"""What root may do whatever the permissions say is taken from this thread, and from those that it starts meanwhile, so that tests
of permissions run as any user does."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION, _OF_FILES = 0x20080522, 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def as_any_user() -> Iterator[None]:
    """Around what meets the permissions."""
    if sys.platform != "linux":
        pytest.skip("capabilities are Linux's")
    libc = ctypes.CDLL(None, use_errno=True)
    header, before, without = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0 and libc.capget(header, without) == 0
    without[0] &= ~_OF_FILES  # what is in effect; what is permitted stays, to be taken back
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
