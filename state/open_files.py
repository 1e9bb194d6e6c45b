"""How many files a process of ours may have open: as many as it is allowed to allow itself.

One rule: the soft limit, 1,024 where nothing sets another, is for programs that wait with select(); a worker has half a dozen files open for
each store, and more for one that is large. Used where a process of the group begins, before it opens any.
"""

from __future__ import annotations

import resource
from contextlib import suppress

FILES_A_STORE, FILES_BESIDE = 7, 100  # measured: 192 stores with a few records, and their worker, have 1,196
ENOUGH = 1 << 20  # what goes through all numbers, as some programs do that an app may start, takes long for more


def raise_limit() -> None:
    """Raises the soft limit of this process, and of those that it starts, to the hard one. A system that refuses keeps its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_of(stores: int) -> int:
    """How many files a worker with so many stores has open, at the least: one that is large has more."""
    return FILES_BESIDE + FILES_A_STORE * stores


def files_allowed() -> int | None:
    """How many a process may have open here; None: as many as it likes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
