"""A whole group of real processes on a real broker: killed, stopped and bounced, with its outputs checked by id."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.place import Place
from tests.kills.harness import life, stops

pytestmark = [pytest.mark.kafka, pytest.mark.processes]


def url(place: Place) -> str:
    return f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"


@pytest.mark.parametrize(("kind", "moment"), [("both", 0.4), ("stall", 0.6), ("produce", 0.5)])
async def test_nothing_is_lost_or_doubled(kind: str, moment: float, place: Place, tmp_path: Path) -> None:
    report = await life(tmp_path, kind, moment, url=url(place))
    assert report.ok, report


async def test_orderly_stops_lose_and_double_nothing(place: Place, tmp_path: Path) -> None:
    report = await stops(tmp_path, "batch", [0.2, 0.6], 8_000, url(place))
    assert report.ok, report
