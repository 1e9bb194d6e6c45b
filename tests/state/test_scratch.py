"""Folders of jobs: gone with the job, and with the next one where it was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from state.scratch import Scratch, scratch, sweep

KILLED = """
import os, signal, sys
from pathlib import Path
from state.scratch import Scratch
Scratch(Path(sys.argv[1]) / "job-1").path.joinpath("file").write_text("x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_job_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert (tmp_path / "job-1/file").exists()
    mine = Scratch(tmp_path / "job-2")
    (tmp_path / "job-3").mkdir()
    assert sweep(tmp_path, "job-*") == [tmp_path / "job-1"]
    assert not (tmp_path / "job-1").exists() and mine.path.exists(), "of a process that lives"
    assert (tmp_path / "job-3").exists(), "not of a job"
    mine.remove()
    assert not mine.path.exists()


def test_what_is_kept_is_for_people(tmp_path: Path) -> None:
    kept = Scratch(tmp_path / "job-1")
    kept.keep()
    assert sweep(tmp_path, "job-*") == [] and kept.path.exists()


def test_a_block_removes_its_folder(tmp_path: Path) -> None:
    with scratch(tmp_path, "job-") as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
