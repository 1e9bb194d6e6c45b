"""How many handshakes a listener begins, by address and time."""

from __future__ import annotations

import pytest

from orchestrator.coordinator import handshake_rate
from orchestrator.coordinator.handshake_rate import HandshakeRate


@pytest.fixture
def rate(monkeypatch: pytest.MonkeyPatch) -> HandshakeRate:
    monkeypatch.setattr(handshake_rate, "AT_ONCE", 10)
    monkeypatch.setattr(handshake_rate, "A_SECOND", 2.0)
    monkeypatch.setattr(handshake_rate, "ADDRESSES_MAX", 3)
    return HandshakeRate(0.0)


def taken(rate: HandshakeRate, address: str, now: float, tries: int = 100) -> int:
    return sum(rate.takes(address, now) for _ in range(tries))


def test_some_at_once_and_then_by_time(rate: HandshakeRate) -> None:
    assert taken(rate, "a", 0.0) == 10
    assert taken(rate, "a", 0.4) == 0
    assert taken(rate, "a", 3.0) == 6
    assert taken(rate, "a", 1_000.0) == 10, "no more than at once, however long nobody came"


def test_strangers_share_one_rate_and_take_nothing_of_members(rate: HandshakeRate) -> None:
    rate.admitted("member", 0.0)
    assert taken(rate, "a", 0.0, 6) + taken(rate, "b", 0.0) == 10
    assert taken(rate, "c", 0.0) == 0
    assert taken(rate, "member", 0.0) == 10
    rate.admitted("member", 0.0)
    assert taken(rate, "member", 0.0) == 0, "being admitted again gives nothing back"


def test_the_address_that_was_admitted_longest_ago_is_forgotten(rate: HandshakeRate) -> None:
    for address in ("a", "b", "c", "a", "d"):
        rate.admitted(address, 0.0)
    taken(rate, "stranger", 0.0)
    assert [taken(rate, address, 0.0) for address in "abcd"] == [10, 0, 10, 10]
