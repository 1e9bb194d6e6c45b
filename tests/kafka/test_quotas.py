"""Quotas of brokers: who is held back by one learns of it. No broker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from state.log import checks
from state.log.kafka import quotas
from state.log.kafka.fetch import FetchAnswer
from state.log.kafka.quotas import Quotas
from state.log.protocol import Partition


async def test_a_broker_that_holds_requests_back_for_long_is_named_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all kinds of answers; some of them, as that to SaslHandshake, say nothing of it."""
    seen = Quotas()
    for answer in (SimpleNamespace(), SimpleNamespace(throttle_time_ms=999), FetchAnswer(0, [], 50)):
        seen.look(1, "b1:9092", answer)
    assert not caplog.messages and seen.held_back_s() == 0.0
    for answer in (FetchAnswer(0, [], 2_400), SimpleNamespace(throttle_time_ms=9_000), SimpleNamespace(throttle=5_000)):
        seen.look(1, "b1:9092", answer)
    assert len(caplog.messages) == 1
    assert "broker 1 at b1:9092 holds requests of this client back, now for 2.4 s" in caplog.text
    assert "client.id" in caplog.text
    assert seen.held_back_s() == 5.0, "the latest of them"
    monkeypatch.setattr(quotas, "AGAIN_S", 0.0)
    seen.look(2, "b2:9092", SimpleNamespace(throttle=5_000))
    assert "broker 2 at b2:9092" in caplog.messages[1]


def test_what_could_not_be_read_for_a_quota_is_no_transaction_that_stays_open() -> None:
    said = checks.held_open(Partition("facts", 0), 50.0, 10.1)
    assert said.startswith(
        "facts-0 could not be read to its end within 50 s: brokers hold requests of this client back"
    )
    assert "transaction" not in said and "client.id" in said
    assert "a transaction has held facts-0 open for 50 s" in checks.held_open(Partition("facts", 0), 50.0)
