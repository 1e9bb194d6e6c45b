"""A prefix on the shared broker for each test; three brokers for those that need replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from state.log.kafka.broker import Broker
from tests import brokers
from tests.kafka import three_replicas
from tests.kafka.place import Place


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    await made.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Broker]]:
    """Brokers with three replicas of everything; none is started."""
    brokers.shared()  # skips the test where none can be had
    made = three_replicas.prepared(tmp_path, version=brokers.VERSION)
    try:
        yield made
    finally:
        for one in made:
            one.stop(kill=True)


@pytest.fixture(scope="package", autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """As that of tests/contracts does: in a run of several processes one file's needs a broker here, and it does not stay to the end."""
    yield
    if hasattr(request.config, "workerinput"):
        brokers.end()
