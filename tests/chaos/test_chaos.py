"""The short form of `make chaos`: one life on one broker, with an event of each sort."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import brokers
from tests.chaos.life import Life
from tests.chaos.plan import drawn

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.short]
SEED, EVENTS = (
    2253,
    11,
)  # of thousands of seeds the shortest life that has all sorts on one broker: `make chaos EVENTS=11 SEED=2253`
SORTS = {"kill", "term", "stop", "link", "broker", "scale"}


async def test_a_life_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers.possible()  # skips the test where none can be had
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(brokers.SHORT_LIVED))
    plan = drawn(SEED, EVENTS)
    assert plan.brokers == 1 and {event.kind.partition("-")[0] for event in plan.events} == SORTS
    outcome = await Life(plan, tmp_path, brokers.VERSION).live()
    assert not outcome.problems, (outcome, tmp_path)
    assert outcome.events.total() > 0 and outcome.records > 0
