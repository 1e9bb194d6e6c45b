"""The short form of `make chaos`: one life on one broker, with an event of each sort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import brokers
from tests.chaos.life import Life
from tests.chaos.plan import drawn

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.short]
SEED, EVENTS = 2253, 11  # of thousands of seeds the shortest life that has all sorts on one broker
SORTS = {"kill", "term", "stop", "link", "broker", "scale"}


async def test_a_life_loses_and_doubles_nothing(tmp_path: Path) -> None:
    brokers.possible()  # skips the test where none can be had
    plan = replace(drawn(SEED, EVENTS), machines=3, standbys=0)  # what a machine of two cores carries beside other tests
    assert plan.brokers == 1 and {event.kind.partition("-")[0] for event in plan.events} == SORTS
    outcome = await Life(plan, tmp_path, brokers.VERSION).live()
    assert not outcome.problems, (outcome, tmp_path)
    assert outcome.events.total() > 0 and outcome.records > 0
