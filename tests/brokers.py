"""One Kafka broker for all tests of a run, started with the first that needs it; says clearly where none can be had.

KAFKA names another version: `make test-kafka KAFKA=3.9.1`.
"""

from __future__ import annotations

import atexit
import os
import re
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
NONE = "no Kafka broker here: "  # what reasons of skips begin with; tests/conftest.py shows them at the end of a run


def numbers(version: str = VERSION) -> tuple[int, ...]:
    """What versions are compared by: as texts 10.0 comes before 4.2."""
    return tuple(int(one) for one in re.findall(r"\d+", version))


@cache
def _jars() -> Path | str:
    if broker.java() is None:  # jars may be there all the same
        return "Kafka needs Java, and none is in JAVA_HOME or on the path"
    try:
        return broker.jars(version=VERSION)
    except BrokerUnusable as error:
        return str(error)


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
        pytest.skip(f"{NONE}{found}")
    return found


def possible() -> None:
    """Skips the test where none can be had; for one that starts its own, and has no use for another beside it."""
    if isinstance(found := _jars(), str):
        pytest.skip(f"{NONE}{found}")


def end() -> None:
    """Nothing that follows needs it: one that is idle takes a thirtieth of a core. A test that asks for it yet has one started anew."""
    if _shared.cache_info().currsize and isinstance(found := _shared(), Broker):
        found.stop(kill=True)
    _shared.cache_clear()
