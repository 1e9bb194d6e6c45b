"""A command on Spark that is asked to end says nothing but what is to be done about what it leaves, whoever else was sent the signal: `timeout` and systemd send it to Java, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = "from orchestrator.cli.main import entry; entry()"
# A command whose end meets that Java is gone, with a task of its own that nobody waits for.
ENDING = """
import asyncio
from orchestrator.cli.main import handle_signals
from pipeline.spark.ending import run_to_its_end

async def failing():
    try:
        await asyncio.Event().wait()
    finally:
        raise ConnectionRefusedError("java is gone")

async def command():
    left = asyncio.create_task(failing())
    await asyncio.sleep(0)
    print("begun", flush=True)
    await failing()

handle_signals()
run_to_its_end(command(), lambda: "what goes on")
"""

# The log has the note and takes no entries; both signals are sent to the command alone.
BETWEEN = """
import asyncio, os, signal, sys
from orchestrator.cli.main import entry
from state.log.sqlite import SqliteLog

number = getattr(signal, sys.argv.pop())

async def seed_positions(self, *given, **named):
    os.kill(os.getpid(), number)
    await asyncio.Event().wait()

SqliteLog.seed_positions = seed_positions
entry()
"""


@pytest.mark.long  # for two starts of Spark each; `test_what_fails_while_it_ends_is_not_printed` has the same line without
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), pytest.param("SIGINT", 130, marks=pytest.mark.long)])
def test_a_repartition_that_is_stopped_between_its_moves(console: Console, name: str, code: int) -> None:
    """The app is refused from then on, and nothing said that the same command goes on."""
    console.write("payments.jsonl", '{"key": "k", "value": {"account": "k", "amount": 1}, "timestamp_ms": 1}\n')
    done = console("backfill", "bank:app", "payments=payments.jsonl", "--snapshots", "snapshots")
    assert done.code == 0, done
    console.write("between.py", BETWEEN)
    again = "run the same command again: 'bank' starts once that has ended"
    child = console.script("between.py", "repartition", "bank:app", "--to", "9", name, name=name)
    assert console.end(child) == code, console.said(name)
    assert console.said(name) == f"the repartition of 'bank' has begun and did not end; {again}\n"


def test_what_fails_while_it_ends_is_not_printed() -> None:
    """But what is to be done is. A signal that comes twice at once is one, and so are those that come until its very end."""
    child = subprocess.Popen(
        [sys.executable, "-c", ENDING], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    while child.poll() is None:
        child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (143, "", "what goes on\n")


@pytest.mark.long
def test_a_backfill_that_is_stopped_with_its_java(console: Console) -> None:
    """While Spark computes; nothing of it is left."""
    lines = (
        f'{{"key": "k{n % 99}", "value": {{"account": "k", "amount": {n}}}, "timestamp_ms": {n}}}\n'
        for n in range(50_000)
    )
    console.write("payments.jsonl", "".join(lines))
    words = ("backfill", "bank:app", "payments=payments.jsonl", "--snapshots", "snapshots")
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        cwd=console.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    snapshots = console.folder / "snapshots"
    console.until("tasks are computed", lambda: list(snapshots.glob(".*.work/.attempts-1")))
    os.killpg(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGTERM)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (143, "", "")
    assert not list(snapshots.iterdir())


def test_a_backfill_that_is_stopped_while_spark_starts(console: Console) -> None:
    """Its folder goes with it."""
    console.write("payments.jsonl", '{"key": "k", "value": {"account": "k", "amount": 1}, "timestamp_ms": 1}\n')
    words = ("backfill", "bank:app", "payments=payments.jsonl", "--snapshots", "snapshots")
    temporary = console.folder / "temporary"
    temporary.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        cwd=console.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    console.until("Spark starts", lambda: list(temporary.glob("stream-orchestrator-spark-*/spark.start.log")))
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (143, "", "")
    assert not list(temporary.glob("stream-orchestrator-spark-*"))


def test_an_audit_that_is_stopped_with_its_java_leaves_no_folder(console: Console) -> None:
    """Java's end became an error that names Spark's log, for which the folder was kept, and which nothing printed."""
    row = '{"key": "k", "value": {"account": "k", "amount": 1}}\n'
    assert console.here("produce", "bank:app", "payments", stdin=row * 2_000).code == 0
    temporary = console.folder / "temporary"
    temporary.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "audit", "bank:app", "--no-stores"],
        cwd=console.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    console.until("tasks are under way", lambda: list(temporary.glob("stream-orchestrator-audit-*/work")))
    os.killpg(child.pid, signal.SIGTERM)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (143, "", "")
    assert not list(temporary.glob("stream-orchestrator-spark-*"))
