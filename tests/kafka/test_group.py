"""A whole group of real processes on a real broker: killed, stopped and bounced, with its outputs checked by id."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.kafka.place import Place
from tests.kills.harness import SHAPES, Bank, life, stops

pytestmark = [pytest.mark.kafka, pytest.mark.processes]


def url(place: Place) -> str:
    return f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"


@pytest.mark.parametrize(("kind", "moment"), [("both", 0.4), ("stall", 0.6), ("produce", 0.5)])
async def test_nothing_is_lost_or_doubled(kind: str, moment: float, place: Place, tmp_path: Path) -> None:
    report = await life(tmp_path, kind, moment, url=url(place))
    assert report.ok, report


@pytest.mark.parametrize(("kind", "moment"), [("both", 0.4), ("stall", 0.6)])
async def test_nothing_is_lost_at_least_once(kind: str, moment: float, place: Place, tmp_path: Path) -> None:
    """A balance counts a payment as often as it was put out: what stands in an output stands in the changelog."""
    report = await life(tmp_path, kind, moment, 6_000, url(place), "repeated")
    assert not report.lost and not report.wrong_balances, report


async def test_orderly_stops_lose_and_double_nothing(place: Place, tmp_path: Path) -> None:
    report = await stops(tmp_path, "batch", [0.2, 0.6], 8_000, url(place))
    assert report.ok, report


async def test_the_guarantee_changes_between_runs_in_both_directions(place: Place, tmp_path: Path) -> None:
    """Exactly once, then at least once with everything killed in it, then exactly once: nothing is lost, and what was put
    out again was so in the middle run, and is in the balances as often."""
    bank = Bank(tmp_path, 12_000, instances=2, url=url(place))
    bank.produce_s = 15
    await bank.start()
    try:
        await bank.until(1_500)
        bank.app = SHAPES["repeated"]
        await bank.bounce(signal.SIGTERM)
        first = await bank.check("at the end of the first run", 0.0)
        assert not first.doubled
        await bank.announced()
        await bank.until(await bank.processed() + 1_000)
        assert "at-least-once" in await bank.told("status", "receipts")
        assert bank.fleet is not None
        everybody = [pid for instance in ("i1", "i2") for pid in bank.signal(instance, signal.SIGKILL)]
        bank.fleet.kill()
        await asyncio.to_thread(bank.fleet.wait)
        assert len(everybody) >= 4
        bank.app = SHAPES["sync"]
        bank.run()
        await bank.finished()
        report = await bank.check("the end", 1.0)
        assert not report.lost and not report.wrong_balances, report
        assert "exactly-once" in await bank.told("status", "receipts")
    finally:
        await bank.stop()
