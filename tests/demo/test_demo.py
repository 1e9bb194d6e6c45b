"""The tour in short: one month of history, two live, instances as processes; every check of its report holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long  # CI runs `make demo` itself
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.parametrize("place", ["processes", "spark"])
def test_the_tour(place: str, tmp_path: Path) -> None:
    words = ["demo", "--on", place, "--history", "1", "--live", "2", "--rate", "400", "--seed", "7", "--json"]
    told = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words, "--state-dir", str(tmp_path / "demo")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    report = json.loads(told.stdout)
    assert report["schema"] == 1 and report["ok"]
    assert report["records"]["lost"] == 0 and report["records"]["doubled"] == 0
    names = [check["check"] for check in report["checks"]]
    assert "a late write of the killed instance" in names and "instances after scale-down" in names
    assert all(check["ok"] for check in report["checks"])
    assert {move["step"] for move in report["hand_overs"]} == {"scale up", "kill", "scale down"}


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    told = subprocess.run(
        [sys.executable, "-m", "orchestrator", "demo", "--state-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2 and "not the demo's" in told.stderr
    assert (tmp_path / "precious").read_text() == "keep me"


def pending(process: int) -> bool:
    """Whether a signal has been sent that the process has not received yet."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.skipif(not Path("/usr/bin/nohup").exists(), reason="there is no nohup")
def test_a_hang_up_that_is_to_be_ignored_is(tmp_path: Path) -> None:
    """`nohup orchestrator demo &` ended with its terminal, with 129."""
    tour = subprocess.Popen(
        ["nohup", sys.executable, "-m", "orchestrator", "demo", "--state-dir", str(tmp_path / "demo")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 180
    while not list((tmp_path / "demo").glob("output/*.log")):  # it has begun with its first step
        if tour.poll() is not None or time.monotonic() > deadline:
            tour.kill()  # else its whole tour is waited for
            pytest.fail(f"it has not begun: {tour.communicate()[0]!r}")
        time.sleep(0.05)
    tour.send_signal(signal.SIGHUP)
    while pending(tour.pid):
        assert time.monotonic() < deadline
    tour.send_signal(signal.SIGTERM)
    said, _ = tour.communicate(timeout=60)
    assert tour.returncode == 143, said
