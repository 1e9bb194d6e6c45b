"""A version that cuts the app into other pieces, as real processes: it is refused beside the version before it, and goes on from its
positions and state once that one is stopped."""

from __future__ import annotations

import pytest

from tests.upgrades.test_rolling_upgrade import Shop, shop

__all__ = ["shop"]
pytestmark = pytest.mark.processes
VERSION = """
from orchestrator import App, Record, Table

app = App("shop", partitions=2)
orders = app.topic("orders", key=str, value=int)
visits = app.topic("visits", key=str, value=int)
totals = app.table("totals", key=str, value=int, default=int)
seen = app.table("seen", key=str, value=int, default=int)


@app.processor(orders, {tables})
def order(order: Record[str, int], {parameters}) -> None:
    totals[order.key] += order.value


@app.processor(visits, seen)
def visit(visit: Record[str, int], seen: Table[str, int]) -> None:
    seen[visit.key] += visit.value
"""
ONE = VERSION.format(tables="totals, seen", parameters="totals: Table[str, int], seen: Table[str, int]")
TWO = VERSION.format(tables="totals", parameters="totals: Table[str, int]")


def test_other_pieces_are_not_rolled_and_go_on_after_a_stop(shop: Shop) -> None:
    shop.console.write("old/shop.py", ONE)
    shop.console.write("new/shop.py", TWO)
    shop.start("i1", "old")
    shop.settled({"0_0", "0_1"}, {"i1"})
    shop.produce("new", "visits")  # by code that runs no task

    shop.start("i2", "new")
    assert shop.running.pop("i2").wait(30) == 3
    refused = shop.console.said("run")
    assert "topic visits and table seen move from subtopology 0 to 1 in this version" in refused, refused
    assert "stop all instances of that version first" in refused, refused
    shop.produce("old", "visits")
    shop.holds("seen", "2")

    shop.stop("i1")
    shop.produce("old", "visits")
    shop.produce("old", "orders", 5)
    shop.start("i2", "new")
    shop.settled({"0_0", "0_1", "1_0", "1_1"}, {"i2"})
    shop.holds("seen", "3")
    shop.holds("totals", "5")
