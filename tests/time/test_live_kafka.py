"""Event time on a broker: an input that the app itself writes ends with markers of transactions, which hold no record, and
nobody waits for one there."""

from __future__ import annotations

import importlib.util
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import Driver
from tests import brokers
from tests.cli.console import Console

pytestmark = [pytest.mark.processes, pytest.mark.kafka]
FAST = ("--session-timeout", "6s", "--heartbeat", "300ms")
APP = """
from orchestrator import App

app = App("NAME")
raw = app.topic("NAME-raw", key=str, value=str)
other = app.topic("NAME-other", key=str, value=str)
out = app.topic("NAME-out", key=str, value=str, alias="out")
by_value = raw.rekey("by-value", key=str, by=lambda record: record.value)
silent = app.timers("silent", key=str)


@app.processor([by_value, other], silent)
def beat(record, silent):
    silent[record.key] = record.timestamp_ms + 10


@app.when_due(silent, out)
def gone(due, out):
    out.send(due.key, f"silent since {due.timestamp_ms - 10}")
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    found = Console(tmp_path / "place", app=f"t{uuid.uuid4().hex[:8]}")
    found.write(f"{found.app}.py", APP.replace("NAME", found.app))
    yield found
    found.close()


def test_the_answer_is_that_of_the_driver(console: Console) -> None:
    name = console.app
    # Its records are of 1970: a broker that looked at its retention between their writing and their reading left none of them.
    log = ("--log", f"kafka://127.0.0.1:{brokers.shared().port}?topic.retention.ms=-1")
    spec = importlib.util.spec_from_file_location(name, console.folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    records = [(f"{name}-{topic}", at) for at in range(0, 400, 7) for topic in ("raw", "other")]
    with Driver(module.app) as driver:
        for topic, at in records:
            driver.send(module.app.topics[topic], f"k{at % 3}", f"v{at % 3}", timestamp_ms=at)
        expected = sorted(driver.items(module.out))
    for topic in (f"{name}-raw", f"{name}-other"):
        rows = [{"key": f"k{at % 3}", "value": f"v{at % 3}", "timestamp_ms": at} for of, at in records if of == topic]
        done = console.here("produce", f"{name}:app", topic, *log, stdin="\n".join(map(json.dumps, rows)))
        assert done.code == 0, done
    process = console.start("run", f"{name}:app", *log, *FAST, name="run")

    def answers() -> list[tuple[str, str]]:
        assert process.poll() is None, console.said("run")
        done = console.here("consume", name, f"{name}-out", *log)
        return sorted((row["key"], row["value"]) for row in map(json.loads, done.out.splitlines()))

    console.until("all answers", lambda: len(answers()) >= len(expected))
    assert answers() == expected
