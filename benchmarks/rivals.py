"""The counts of other frameworks, for a figure beside ours: Quix Streams and Kafka Streams, each on a broker of its own.

One rule: what is not here is left out, and said so; what fails leaves its place empty. Quix Streams is here where QUIX_PYTHON names
a Python that has quixstreams, Kafka Streams where a Java development kit and the jars of Kafka are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from state.log.kafka import broker

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIX, STREAMS = "Quix Streams", "Kafka Streams"
NAMES = {"quix": QUIX, "streams": STREAMS}
ABSENT = {
    QUIX: "Quix Streams was not measured: QUIX_PYTHON names no Python that has quixstreams.",
    STREAMS: "Kafka Streams was not measured: a Java development kit or the jars were not here, or it was left out.",
}
WAIT_S = 300.0
TIME = Path(__file__).parent / "time_java" / "Time.java"
# Records behind which a JVM is measured: behind a tenth of them it has not compiled its loops, and costs four times as much.
WARM = 1_000_000
EXACTLY, LEAST = "exactly", "least"


@dataclass(frozen=True, slots=True)
class Count:
    """What a rival is asked for: a form of benchmarks/time_apps.py over so many records of so many keys; None: each has its own."""

    form: str
    records: int
    keys: int | None
    guarantee: str = EXACTLY


class Rivals:
    """Those of `asked` ("quix", "streams") that are here. `folder` is theirs."""

    def __init__(self, asked: Collection[str], folder: Path) -> None:
        self._folder = folder
        self._python = os.environ.get("QUIX_PYTHON") if "quix" in asked else None
        self._classpath = streams_classpath(folder / "classes", TIME) if "streams" in asked else None
        self.names = [name for name, here in ((QUIX, self._python), (STREAMS, self._classpath)) if here]

    def rate(self, name: str, count: Count) -> float | None:
        """Records per CPU-second of the rival's process; None where it failed."""
        run: Callable[[str, Count], float] = self._quix if name == QUIX else self._streams
        try:
            with _broker(self._folder / f"broker-{name.split()[0]}") as address:
                return run(address, count)
        except subprocess.SubprocessError as error:
            print(f"{count.form:10} not measured, {name}: {error}", flush=True)
            return None

    def _quix(self, address: str, count: Count) -> float:
        where = ["--broker", address, "--prefix", "quix-", "--records", str(count.records)]
        where += ["--keys", str(count.keys or count.records)]
        command = [str(self._python), str(Path(__file__).with_name("quix_time.py"))]
        subprocess.run([*command, "write", count.form, *where], check=True, timeout=WAIT_S)
        return _last_number([*command, "run", count.form, *where])

    def _streams(self, address: str, count: Count) -> float:
        numbers = [WARM + count.records, WARM, count.keys or WARM + count.records]
        state = self._folder / "streams"
        where = [address, count.form, count.guarantee, str(state), *map(str, numbers)]
        return _last_number([broker.java() or "java", "-Xmx1g", "-cp", str(self._classpath), "Time", *where])


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    made = broker.prepare(folder)
    made.launch()
    try:
        yield made.address.removeprefix("kafka://")
    finally:
        made.stop(kill=True)


def _last_number(command: list[str]) -> float:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, timeout=WAIT_S)
    return float(done.stdout.split()[-1])


def streams_classpath(folder: Path, source: Path) -> str | None:
    """Where the compiled classes of `source` and Kafka's jars are; None where there is no Java to compile them, or no jars."""
    compiler = broker.java("javac")
    if broker.java("java") is None or compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = os.pathsep.join([f"{broker.jars('kafka-streams')}/*", str(folder)])
    except broker.BrokerUnusable as error:
        print(f"Kafka Streams is left out: {error}", flush=True)
        return None
    subprocess.run([compiler, "-cp", found, "-d", str(folder), str(source)], check=True)
    return found
