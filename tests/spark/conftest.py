"""One Spark session for the whole run: it takes seconds to start. Tests that need it are marked `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pipeline.spark.session import spark_session, stop
    from workers.commands.cluster import Cluster

    session = spark_session("tests", Cluster("local[8,4]"), settings=SETTINGS)
    yield session
    stop(session)
