"""The short form of `make chaos`: one life on one broker, with a few events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import brokers
from tests.chaos.life import Life
from tests.chaos.plan import drawn

pytestmark = [pytest.mark.kafka, pytest.mark.processes]


async def test_a_life_loses_and_doubles_nothing(tmp_path: Path) -> None:
    brokers.shared()  # skips the test where none can be had
    plan = replace(drawn(4, 8), brokers=1, machines=3)
    outcome = await Life(plan, tmp_path, brokers.VERSION).live()
    assert not outcome.problems, (outcome, tmp_path)
    assert outcome.events.total() > 0 and outcome.records > 0
