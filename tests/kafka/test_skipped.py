"""Where no broker can be had a run ends well, and tells so: what skips a test, how many there were, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import brokers

ROOT = Path(__file__).resolve().parent.parent.parent
TEST = "from tests import brokers\n\n\ndef test_it():\n    brokers.{}()\n"


@pytest.mark.processes
def test_a_run_without_brokers_says_so_at_its_end(tmp_path: Path) -> None:
    """In a process beside that of the run, as `make test` has them, and without Java."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    for one in ("shared", "possible"):
        (tmp_path / f"test_{one}.py").write_text(TEST.format(one))
    here = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "1", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **here}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    [line] = [line for line in done.stdout.splitlines() if line.startswith("tests on Kafka brokers")]
    assert line.startswith("tests on Kafka brokers were skipped (2): Kafka needs Java, and none is in"), line


def test_versions_are_compared_by_their_numbers() -> None:
    assert brokers.numbers("3.9.1") < brokers.numbers("4.2") <= brokers.numbers("4.2.0") < brokers.numbers("10.0.0")
