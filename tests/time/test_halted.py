"""A due call that stops its task, in real processes: named by what was due, and no record that could be skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms", "--on-halt", "continue")
APP = """
from pathlib import Path
from orchestrator import App

app = App("loud")
beats = app.topic("beats", key=str, value=int)
out = app.topic("out", key=str, value=str)
silent = app.timers("silent", key=str)


@app.processor(beats, silent)
def beat(beat, silent):
    silent[beat.key] = beat.timestamp_ms + 5


@app.when_due(silent, out)
def gone(due, out):
    if not Path("mended").exists():
        raise ValueError("not yet")
    out.send(due.key, "silent")
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    found = Console(tmp_path / "place", app="loud")
    found.write("loud.py", APP)
    yield found
    found.close()


def test_a_due_call_halts_its_task_and_is_made_again(console: Console) -> None:
    console.run(*FAST)
    lines = "\n".join(f'{{"key": "ann", "value": 1, "timestamp_ms": {at}}}' for at in (1, 100))
    assert console.here("produce", "loud:app", "beats", stdin=lines).code == 0
    console.until("the halt", lambda: "halted" in console.here("status", "loud").out)
    assert "what came due of silent" in console.here("status", "loud").out
    refused = console.here("resume", "loud", "0_0", "--skip")
    assert refused.code == 2 and "which is no record and comes due again" in refused.err
    assert refused.err.count("\n") == 1
    console.write("mended", "")
    done = console.here("resume", "loud", "0_0")
    assert done.code == 0 and done.out == "0_0 goes on with what came due of silent\n"
    console.until("the call", lambda: '"silent"' in console.here("consume", "loud", "out").out)
