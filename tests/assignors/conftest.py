"""One Kafka broker for all tests here that need one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.assignors import kafka


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address; the topics are there."""
    kafka.skip_without_java()
    with kafka.broker(tmp_path_factory.mktemp("broker")) as found:
        asyncio.run(kafka.create_topics(found))
        yield found
