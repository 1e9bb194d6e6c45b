"""Quotas of brokers: who is held back by one learns of it. No broker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from state.log.kafka import quotas
from state.log.kafka.fetch import FetchAnswer
from state.log.kafka.quotas import Quotas


async def test_a_broker_that_holds_requests_back_for_long_is_named_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all kinds of answers; some of them, as that to SaslHandshake, say nothing of it."""
    seen = Quotas()
    for answer in (SimpleNamespace(), SimpleNamespace(throttle_time_ms=999), FetchAnswer(0, [], 50)):
        seen.look(1, "b1:9092", answer)
    assert not caplog.messages
    for answer in (FetchAnswer(0, [], 2_400), SimpleNamespace(throttle_time_ms=9_000), SimpleNamespace(throttle=5_000)):
        seen.look(1, "b1:9092", answer)
    assert len(caplog.messages) == 1
    assert "broker 1 at b1:9092 holds requests of this client back, now for 2.4 s" in caplog.text
    assert "client.id" in caplog.text
    monkeypatch.setattr(quotas, "AGAIN_S", 0.0)
    seen.look(2, "b2:9092", SimpleNamespace(throttle=5_000))
    assert "broker 2 at b2:9092" in caplog.messages[1]
