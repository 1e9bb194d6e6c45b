"""One suite for every log: each test runs once for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from state.log.protocol import GroupLog, TopicSpec
from tests import brokers
from tests.contracts.logs import PLACES, Place

KAFKA = (pytest.mark.kafka, pytest.mark.short)


@pytest.fixture(params=[pytest.param(name, marks=KAFKA if name == "kafka" else ()) for name in PLACES])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = PLACES[request.param](tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def log(place: Place) -> GroupLog:
    made = await place.open()
    await made.create_topic(TopicSpec("payments", 3))
    await made.create_topic(TopicSpec("counts-changelog", 2, "changelog"))
    return made


@pytest.fixture(scope="package", autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a run of several processes these are all that need the broker, or all that share it: it does not stay to the end."""
    yield
    if hasattr(request.config, "workerinput"):
        brokers.end()
