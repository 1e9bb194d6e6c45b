"""How many files a process of ours may have open: as many as it is allowed to allow itself.

One rule: the soft limit, 1,024 where nothing sets another, is for programs that wait with select(); a worker has half a dozen files open for
each store, and more for one that is large. Used where a process of the group begins, before it opens any.
"""

from __future__ import annotations

import resource
from contextlib import suppress

ENOUGH = 1 << 20  # what goes through all numbers, as some programs do that an app may start, takes long for more


def raise_limit() -> None:
    """Raises the soft limit of this process, and of those that it starts, to the hard one. A system that refuses keeps its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
