"""Quotas of the brokers: how long one holds this client's requests back, which it says in each answer.

One rule: who waits for a quota learns of it. A broker that throttles a client answers, and reads its next request later: commits,
the lease and looks at the facts all become slow, as if brokers were ill. Used by `connections`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger("orchestrator.log")
LONG_MS = 1_000  # less is how a quota works: it evens out
AGAIN_S = 60.0


class Quotas:
    """Warns of a broker that holds requests back for long, once a minute."""

    def __init__(self) -> None:
        self._warned_s: float | None = None
        self._latest: tuple[float, float] | None = None  # when a broker held a request back for long, and for how long

    def look(self, node: int, address: str, answer: Any) -> None:
        """Takes each answer of a broker."""
        held_ms: int = getattr(answer, "throttle_time_ms", 0) or getattr(answer, "throttle", 0)
        if held_ms < LONG_MS:
            return
        now_s = asyncio.get_running_loop().time()
        self._latest = now_s, held_ms / 1000
        if self._warned_s is not None and now_s - self._warned_s < AGAIN_S:
            return
        self._warned_s = now_s
        log.warning(
            "broker %d at %s holds requests of this client back, now for %.1f s: they are above its quota (kafka-configs --describe "
            "--entity-type clients, or users); raise that, or give this app a client.id of its own with one that is higher",
            node,
            address,
            held_ms / 1000,
        )

    def held_back_s(self) -> float:
        """For how long a broker held the latest request back, lately; 0 where none did for long."""
        if self._latest is None or asyncio.get_running_loop().time() - self._latest[0] > AGAIN_S:
            return 0.0
        return self._latest[1]
