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


@cache
def _shared() -> Broker | str:
    """The broker of this process, or why there is none."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-broker-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        made = broker.prepare(folder / "broker", version=VERSION)
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
