"""Names that may be mistyped ones of topics that are there, and names that differ on purpose."""

from __future__ import annotations

import pytest

from orchestrator import App
from state.log.memory import MemoryLog
from workers.missing_inputs import closest, refuse_mistyped


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("payment", "payments"),
        ("paymnets", "payments"),
        ("Payments", "payments"),
        ("Users", "users"),
        ("odrer", "order"),
        ("useru", "users"),
        ("card_payments", "card.payments"),
        ("cardpayments", "card-payments"),
        ("payments2", "payment-2"),
    ],
)
def test_a_name_that_was_mistyped(name: str, there: str) -> None:
    assert closest(name, ["another", there, "tx.of.all.accounts"]) == there


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("payments", "payments2"),
        ("orders-1", "orders-2"),
        ("bid", "ask"),
        ("user", "used"),
        ("orders", "eu.orders.all"),
    ],
)
def test_a_name_that_differs_on_purpose(name: str, there: str) -> None:
    assert closest(name, ["another", there]) is None


def test_one_that_differs_by_a_number_shows_that_the_name_is_meant() -> None:
    assert closest("payments2", ["payment", "payments"]) is None


async def test_the_topic_of_a_global_table_is_an_input() -> None:
    app = App("x", partitions=1)
    rates, orders = (app.topic(name, key=str, value=int) for name in ("rates", "orders"))
    app.processor(orders, app.global_table(rates))(lambda order, rates: None)
    assert await refuse_mistyped(MemoryLog(), app) == (["orders", "rates"], True)
