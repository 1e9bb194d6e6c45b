"""`orchestrator run --on spark`, used as a user would: what ends it, what it says then, and what it leaves behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.often import often

pytestmark = [pytest.mark.spark, pytest.mark.processes]
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")


@pytest.fixture
def on_spark(console: Console, tmp_path: Path) -> Console:
    """What Spark writes lies where the test can look for it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    console.environment["TMPDIR"] = str(temporary)
    return console


def java(console: Console) -> int:
    [found] = [pid for pid in console.processes() if (Path("/proc") / str(pid) / "exe").readlink().name == "java"]
    return found


def folders(console: Console) -> list[Path]:
    return list(Path(console.environment["TMPDIR"]).glob("stream-orchestrator-spark-*"))


def test_spark_is_killed(on_spark: Console) -> None:
    """One line, and the instances end with it; nobody starts them anew in a Spark that is not there."""
    fleet = on_spark.run(*FAST, "--on", "spark", instances=2)
    os.kill(java(on_spark), signal.SIGKILL)
    assert on_spark.end(fleet) == 1
    said = (on_spark.folder / "run.err").read_text()
    assert said.count("\n") == 1 and said.startswith("error: Spark is gone"), said
    [folder] = folders(on_spark)
    assert str(folder / "spark.log") in said and (folder / "spark.log").exists()
    on_spark.nothing_left()


@pytest.mark.parametrize("number", often((signal.SIGINT, signal.SIGTERM), signal.SIGTERM))
def test_a_signal_while_spark_starts(on_spark: Console, number: int) -> None:
    fleet = on_spark.start("run", "bank:app", "--on", "spark", name="run")
    on_spark.until("Spark", lambda: folders(on_spark) and len(on_spark.processes()) > 1)
    fleet.send_signal(number)
    assert on_spark.end(fleet) == 128 + number
    assert on_spark.said("run") == "stopped before an instance was started\n"
    assert not folders(on_spark)
    on_spark.nothing_left()


@pytest.mark.long
def test_two_signals_to_a_fleet_that_runs(on_spark: Console) -> None:
    """What is killed is not told as a failure of Spark, and Spark itself is stopped in order."""
    fleet = on_spark.run(*FAST, "--on", "spark", instances=2)
    children = [pid for pid in on_spark.processes() if pid not in (fleet.pid, java(on_spark))]
    for pid in children:
        os.kill(pid, signal.SIGSTOP)  # so that the second signal still finds them

    def has_ended() -> bool:
        fleet.terminate()  # again and again: the kernel makes one of two that come at once
        return fleet.poll() is not None

    on_spark.until("the end of the fleet", has_ended)
    assert on_spark.end(fleet) == 0
    assert (on_spark.folder / "run.err").read_text() == ""
    assert not folders(on_spark)
    on_spark.nothing_left()


@pytest.mark.long
def test_a_signal_to_all_of_its_processes(on_spark: Console) -> None:
    """As `timeout`, systemd and a terminal that is closed send it: Java ends by it, too, and that was shown as a failure of Spark."""
    fleet = on_spark.run(*FAST, "--on", "spark", instances=2)
    fleet.send_signal(signal.SIGTERM)
    os.kill(java(on_spark), signal.SIGTERM)
    assert on_spark.end(fleet) == 0
    assert (on_spark.folder / "run.err").read_text() == ""
    assert not folders(on_spark)
    on_spark.nothing_left()


@pytest.mark.long
def test_an_instance_that_has_no_slot_is_named(on_spark: Console) -> None:
    """Also on a local master, which has no executors to look at: it waited without a line."""
    fleet = on_spark.run(*FAST, "--on", "spark", "--master", "local[1]", instances=2, wait=False)
    on_spark.until("a line", lambda: "has not begun for 15 s: local[1] has no free slot" in on_spark.said("run"))
    fleet.terminate()
    assert on_spark.end(fleet) == 0
    on_spark.nothing_left()
