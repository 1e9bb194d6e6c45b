"""The short form of `make kill`: each kind of kill at a moment drawn from a fixed seed; at a second one with `make test-long`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.kills.harness import KINDS, SHAPES, life, scaled, stops
from tests.often import often

pytestmark = pytest.mark.processes
CHOICE = random.Random(20131)
MOMENTS = [
    pytest.param(kind, round(CHOICE.uniform(0.05, 0.95), 3), marks=marks)
    for kind in KINDS
    for marks in ((), pytest.mark.long)
]


@pytest.mark.parametrize(("kind", "moment"), MOMENTS, ids=lambda value: str(value))
async def test_nothing_is_lost_or_doubled(kind: str, moment: float, tmp_path: Path) -> None:
    report = await life(tmp_path, kind, moment)
    assert report.ok, report


@pytest.mark.parametrize("kind", often(("instance", "coordinator"), "instance"))
async def test_columns_lose_and_double_nothing(kind: str, tmp_path: Path) -> None:
    report = await life(tmp_path, kind, 0.4, shape="columns")
    assert report.ok, report


async def test_columns_scaled_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    report = await scaled(tmp_path, (), shape="columns")
    assert report.ok, report


SCALED = {
    "eager": ("--protocol", "eager", "--task-weights", "0_0=4", "--capacity", "2"),
    "cooperative": ("--protocol", "cooperative", "--workers", "2"),
    "conservative": ("--ready", "conservative", "--standbys", "1"),
}


@pytest.mark.parametrize("how", often(SCALED, "conservative"))
async def test_scaling_under_load_loses_and_doubles_nothing(how: str, tmp_path: Path) -> None:
    """Up and down under every protocol, with several workers, weights and capacities; a coordinator dies in between."""
    report = await scaled(tmp_path, SCALED[how], kill=how == "conservative")
    assert report.ok, report


@pytest.mark.parametrize("shape", often(SHAPES, "sync", "async"))  # the others with `make kill`, too
async def test_orderly_stops_lose_and_double_nothing(shape: str, tmp_path: Path) -> None:
    records = 4_000 if shape == "async" else 12_000
    report = await stops(tmp_path, shape, [round(CHOICE.uniform(n / 4, (n + 1) / 4), 3) for n in range(3)], records)
    assert report.ok, report
