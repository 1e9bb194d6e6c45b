"""One Kafka broker for all tests of a run, started with the first that needs it; says clearly where none can be had.

KAFKA names another version: `make test-kafka KAFKA=3.9.1`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from state.log.kafka import broker
from state.log.kafka.broker import Broker, BrokerUnusable

VERSION = os.environ.get("KAFKA", broker.VERSION)  # of every broker that a test starts
# It serves small requests for a minute: the second compiler and parallel collectors cost more than they give. A start takes half of
# the CPU.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@cache
def _shared() -> Broker | str:
    """The broker of this process, or why there is none."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-broker-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        made = broker.prepare(folder / "broker", version=VERSION, options=SHORT_LIVED)
        atexit.register(made.stop, kill=True)
        made.launch()
    except BrokerUnusable as error:
        return str(error)
    return made


def shared() -> Broker:
    """Skips the test where no broker can be had."""
    found = _shared()
    if isinstance(found, str):
        pytest.skip(f"no Kafka broker here: {found}")
    return found


def end() -> None:
    """Nothing that follows needs it: one that is idle takes a thirtieth of a core. A test that asks for it yet has one started anew."""
    if _shared.cache_info().currsize and isinstance(found := _shared(), Broker):
        found.stop(kill=True)
    _shared.cache_clear()
