"""A process that does what needs a Java of its own, one part after another in one Java, and prints what it saw: see
test_one_java.py. Java takes longer to start than all of this together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import orc

from pipeline.files import parts
from pipeline.files.shape import Shape
from pipeline.spark.history import BadHistory
from pipeline.spark.running import in_thread, spark
from pipeline.spark.session import SparkFailed, spark_session, stop
from pipeline.spark.sources import From, local_files
from tests.spark import beginning, light
from tests.spark.test_sources import TEXTS
from workers.commands.cluster import LOCAL, Cluster

AT_MS = 1_769_860_800_000


@contextmanager
def standard_error(into: Path) -> Iterator[None]:
    """What this process and those that it starts write there."""
    kept = os.dup(2)
    with into.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def times_of_orc(folder: Path) -> list[int | None]:
    rows = {"key": ["ann"], "value": ["x"], "timestamp_ms": pa.array([AT_MS], pa.timestamp("ms"))}
    orc.write_table(pa.table(rows), folder / "a.orc")
    session = spark_session("zone", Cluster("local[1]"))
    [name], _ = local_files(session, From(f"orc:{folder}/a.orc"), folder / "times", TEXTS, Shape())
    stop(session)
    return [one.timestamp_ms for part in parts.parts(name) for one in parts.read(part, TEXTS, Shape())]


def failed_query(folder: Path) -> list[str]:
    """Its message, and what stood on standard error."""
    text = "select 'ann' as key, cast(x as int) as value, 5L as timestamp_ms from values ('y') as t(x)"
    said, problem = folder / "said", ""
    with standard_error(said):
        session = spark_session("fails", Cluster("local[1]"))
        try:
            local_files(session, From(text), folder / "rows", TEXTS, Shape())
        except BadHistory as error:
            problem = str(error)
        finally:
            stop(session)
    return [problem, said.read_text()]


def killed(_: Path) -> str:
    """The last part: there is no Java behind it."""

    async def ends() -> None:
        async with spark(None, "ends", LOCAL) as session:
            java = int(session._jvm.java.lang.ProcessHandle.current().pid())
            await in_thread(session, lambda: (os.kill(java, signal.SIGKILL), session.range(3).count()))

    try:
        asyncio.run(ends())
    except SparkFailed as error:
        return str(error)
    return ""


PARTS: dict[str, Callable[[Path], Any]] = {
    "began": lambda _: [beginning.seen(), beginning.seen()],
    "light": light.facts,
    "times": times_of_orc,
    "query": failed_query,
    "killed": killed,
}


if __name__ == "__main__":
    print(json.dumps({name: part(Path(sys.argv[1])) for name, part in PARTS.items()}))
