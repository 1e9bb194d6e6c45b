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
