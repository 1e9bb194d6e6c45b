"""A fleet whose terminal has gone, or whose standard output and error are closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.console import WAIT, Console
from tests.cli.test_signals import instance_pid

pytestmark = pytest.mark.processes


def test_a_fleet_goes_on_where_nobody_reads_what_it_writes(console: Console) -> None:
    """`run ... 2>&1 | head -1`: an instance that crashed was not started again, and the fleet ended with 0."""
    reader, writer = os.pipe()
    fleet = console.start("run", "bank:app", "--instances", "2", output=writer)
    os.close(writer)
    assert b"2 instances" in os.read(reader, 1_000)
    os.close(reader)
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0
    before = instance_pid(console, "i2")
    os.kill(before, signal.SIGKILL)
    console.until("another i2", lambda: fleet.poll() is not None or instance_pid(console, "i2") != before)
    assert fleet.poll() is None
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0
    fleet.terminate()
    assert console.end(fleet) == 0


def test_a_fleet_begins_where_nobody_reads_what_it_writes(console: Console) -> None:
    """It ended with 0, and nothing ran."""
    reader, writer = os.pipe()
    os.close(reader)
    fleet = console.start("run", "bank:app", output=writer)
    os.close(writer)
    assert console.here("wait", "bank", *WAIT).code == 0
    fleet.terminate()
    assert console.end(fleet) == 0


@pytest.mark.skipif(not Path("/usr/bin/nohup").exists(), reason="there is no nohup")
def test_a_hang_up_that_is_to_be_ignored_is(console: Console) -> None:
    """`nohup orchestrator run ... &`: the fleet ended with its terminal all the same."""
    fleet = console.start("run", "bank:app", name="run", under=("nohup",))
    assert console.here("wait", "bank", *WAIT).code == 0
    worker = console.here("status", "bank", "--json").json["instances"][0]["pid"]
    for process in (fleet.pid, instance_pid(console, "i1"), worker):
        os.kill(process, signal.SIGHUP)
    console.pay(("ann", 5))
    assert console.balance("ann") == "5\n"
    assert fleet.poll() is None
    assert console.here("status", "bank", "--json").json["instances"][0]["pid"] == worker
    fleet.terminate()
    assert console.end(fleet) == 0


def test_a_hang_up_stops_a_fleet_in_order(console: Console) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup themselves
    try:
        fleet = console.run()
    finally:
        signal.signal(signal.SIGHUP, before)
    fleet.send_signal(signal.SIGHUP)
    assert console.end(fleet) == 0


def test_what_nobody_reads_does_not_change_the_exit_code() -> None:
    """What is left in the buffer of standard error is flushed as the interpreter ends: that was exit code 120."""
    reader, writer = os.pipe()
    os.close(reader)
    program = (
        "import sys; from orchestrator.cli import main; from workers import log_lines;"
        "main._run = lambda argv: log_lines.announce('text', 'a line') or 3; sys.exit(main.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=writer, check=False)
    os.close(writer)
    assert done.returncode == 3
