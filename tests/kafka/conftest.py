"""A prefix on the shared broker for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kafka.place import Place


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    await made.close()
