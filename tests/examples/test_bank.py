"""The bank example, as the design page prints its test: no broker, no process, no clock."""

from __future__ import annotations

from examples.bank import Payment, alerts, app, balances, payments, settle
from orchestrator.testing import Driver


def test_overdrawn() -> None:
    with Driver(app) as bank:
        bank.send(payments, "ann", Payment("ann", -5))
        assert bank.table(balances) == {"ann": -5}
        assert bank.items(alerts) == [("ann", "overdrawn")]


def test_the_function_alone() -> None:
    balance, alert = balances.fake(), alerts.fake()
    settle(payments.record("ann", Payment("ann", -5)), balance, alert)
    assert balance == {"ann": -5} and alert == [("ann", "overdrawn")]
