"""How many handshakes of TLS a listener begins: each costs about a millisecond of its process, and whoever asks for one need not
have proven anything.

One rule: an address from which a peer was admitted has a rate of its own, and all other addresses share one: a flood of
strangers takes from strangers alone, and members that are there come back. Pure: the listener gives the time, and ends a
connection above the rate before its handshake; a member tries again.
"""

from __future__ import annotations

A_SECOND = 200.0
AT_ONCE = 2_000  # members of a large group that all come to a new coordinator
ADDRESSES_MAX = 10_000  # that have a rate of their own; the one that was admitted longest ago has none any more


class _Bucket:
    """Tokens that come back with time."""

    def __init__(self, now: float) -> None:
        self._left = float(AT_ONCE)
        self._at = now

    def take(self, now: float) -> bool:
        self._left = min(float(AT_ONCE), self._left + (now - self._at) * A_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class HandshakeRate:
    """Of one listener. `now` is of one clock that never goes back, in seconds."""

    def __init__(self, now: float) -> None:
        self._strangers = _Bucket(now)
        self._known: dict[str, _Bucket] = {}  # the one that was admitted longest ago first

    def takes(self, address: str, now: float) -> bool:
        """Whether a handshake with a peer at this address may begin; it is counted then."""
        return self._known.get(address, self._strangers).take(now)

    def admitted(self, address: str, now: float) -> None:
        """A peer at this address has proven its right."""
        before = self._known.pop(address, None)
        self._known[address] = _Bucket(now) if before is None else before
        if len(self._known) > ADDRESSES_MAX:
            del self._known[next(iter(self._known))]
