"""Quiet inputs in real processes: with `idle=` the wall clock takes over, and what is due comes without a record."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import App
from pipeline.errors import DefinitionError
from tests.cli.console import Console
from tests.often import often

FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
APP = """
from orchestrator import App

app = App("quiet", idle="1s")
beats = app.topic("beats", key=str, value=int)
out = app.topic("out", key=str, value=str)
silent = app.timers("silent", key=str)


@app.processor(beats, silent)
def beat(beat, silent):
    silent[beat.key] = beat.timestamp_ms + 500


@app.when_due(silent, silent, out)
def gone(due, silent, out):
    out.send(due.key, "silent")
    if due.key == "ann":
        silent["bob"] = due.timestamp_ms + 2_000
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    found = Console(tmp_path / "place", app="quiet")
    found.write("quiet.py", APP)
    yield found
    found.close()


def answers(console: Console) -> list[tuple[str, int]]:
    done = console.here("consume", "quiet", "out")
    return [(row["key"], row["timestamp_ms"]) for row in map(json.loads, done.out.splitlines())]


@pytest.mark.processes
def test_what_is_due_comes_without_a_record(console: Console) -> None:
    run = console.run(*FAST)
    at = time.time_ns() // 1_000_000
    line = json.dumps({"key": "ann", "value": 1, "timestamp_ms": at})
    assert console.here("produce", "quiet:app", "beats", stdin=line).code == 0
    console.until("the first timer", lambda: answers(console) == [("ann", at + 500)])
    run.send_signal(signal.SIGKILL)
    run.wait()
    console.nothing_left()
    console.run(*FAST)
    console.until("the second timer", lambda: answers(console) == [("ann", at + 500), ("bob", at + 2_500)])


WRONG_CLOCK = """
import sys
import time
from pathlib import Path

right = time.time_ns
if "pytest" not in sys.modules:
    time.time_ns = lambda: right() + (365 * 86_400 * 10**9 if Path("wrong").exists() else 0)
"""


@pytest.mark.processes
def test_a_clock_that_is_wrong_for_a_moment_takes_no_task_ahead(console: Console) -> None:
    """Ticks of a year ahead had all that waits come due, and made every later record late."""
    text = APP.replace('idle="1s"', 'idle="1s", partitions=1').replace(
        "timestamp_ms + 500", "timestamp_ms + beat.value"
    )
    console.write("quiet.py", WRONG_CLOCK + text)

    def beat(key: str, value: int) -> int:
        at = time.time_ns() // 1_000_000
        line = json.dumps({"key": key, "value": value, "timestamp_ms": at})
        assert console.here("produce", "quiet:app", "beats", stdin=line).code == 0
        return at + value

    console.run(*FAST)
    beat("cyd", 3_600_000)
    console.write("wrong", "")
    console.until("a word about the clock", lambda: "wall clock went ahead by 31536000 s" in console.said("run"))
    due = beat("dee", 400)
    console.until("what is due by the time that was", lambda: answers(console) == [("dee", due)])
    (console.folder / "wrong").unlink()
    last = beat("eve", 500)
    console.until("what is due by the right time", lambda: answers(console) == [("dee", due), ("eve", last)])


SWITCHED_ON = """
import sys
import time
from datetime import timedelta
from pathlib import Path

right = time.time_ns
if "pytest" not in sys.modules:
    time.time_ns = lambda: right() - (0 if Path("set").exists() else 50 * 365 * 86_400 * 10**9)
"""
OTHERS = """
others = app.topic("others", key=str, value=int, max_ahead=timedelta(days=1))
heard = app.timers("heard", key=str)


@app.processor(others, heard, out)
def hear(other, heard, out):
    heard[other.key] = other.timestamp_ms + 1
    out.send(other.key, "heard")
"""


@pytest.mark.processes
def test_the_first_record_says_what_time_it_is(console: Console) -> None:
    """Of a machine whose clock begins in 1970 the ticks did: for ever after each record was too far ahead."""
    console.write("quiet.py", SWITCHED_ON + APP.replace('idle="1s"', 'idle="1s", partitions=1') + OTHERS)
    console.run(*FAST)
    now_ms = time.time_ns() // 1_000_000
    then_ms = now_ms - 50 * 365 * 86_400_000
    produce = lambda topic, **line: console.here("produce", "quiet:app", topic, stdin=json.dumps(line)).code  # noqa: E731
    assert produce("beats", key="cyd", value=1, timestamp_ms=then_ms) == 0
    console.until("ticks of tasks without records", lambda: answers(console) == [("cyd", then_ms + 500)])
    console.write("set", "")
    assert produce("others", key="dee", value=1, timestamp_ms=now_ms) == 0
    console.until("what came", lambda: ("dee", now_ms) in answers(console))


DIES_ONCE = """
import os
import signal
from pathlib import Path


def die(path):
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGABRT)


"""


@pytest.mark.processes
@pytest.mark.parametrize("dies_in", often(("beat", "gone"), "gone"))
def test_it_comes_also_where_the_worker_is_careful_after_a_crash(console: Console, dies_in: str) -> None:
    lines = APP.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"def {dies_in}("))
    lines.insert(at + 1, '    die(Path("died"))')
    text = "\n".join(lines).replace('idle="1s"', 'idle="1s", on_error="skip"')
    console.write("quiet.py", DIES_ONCE + text)
    console.run(*FAST)
    at_ms = time.time_ns() // 1_000_000
    rows = [{"key": key, "value": 1, "timestamp_ms": at_ms + n} for n, key in enumerate(("cem", "ann"))]
    assert console.here("produce", "quiet:app", "beats", stdin="\n".join(map(json.dumps, rows))).code == 0
    expected = [("cem", at_ms + 500), ("ann", at_ms + 501), ("bob", at_ms + 2_501)]
    console.until("all of them", lambda: answers(console) == expected)
    assert (console.folder / "died").exists(), "a worker has crashed once"


@pytest.mark.long
@pytest.mark.processes
def test_a_call_that_a_tick_made_due_and_that_always_crashes_is_left_to_its_policy(console: Console) -> None:
    lines = APP.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("def gone("))
    lines.insert(at + 1, '    if due.key == "cem":\n        os.abort()')
    console.write("quiet.py", "import os\n" + "\n".join(lines).replace('idle="1s"', 'idle="1s", on_error="skip"'))
    console.run(*FAST)
    at_ms = time.time_ns() // 1_000_000
    rows = [{"key": key, "value": 1, "timestamp_ms": at_ms + n} for n, key in enumerate(("cem", "ann"))]
    assert console.here("produce", "quiet:app", "beats", stdin="\n".join(map(json.dumps, rows))).code == 0
    console.until("the others", lambda: answers(console) == [("ann", at_ms + 501), ("bob", at_ms + 2_501)])


@pytest.mark.parametrize("idle", ["soon", "0s", "3", -5])
def test_no_duration(idle: str) -> None:
    with pytest.raises(DefinitionError, match="idle="):
        App("x", idle=idle)
