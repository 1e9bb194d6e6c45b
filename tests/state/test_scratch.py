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


RACE = """
import sys
from pathlib import Path
from secrets import token_hex
from state.scratch import Scratch, sweep
root, gone = Path(sys.argv[1]), 0
for _ in range(600):
    sweep(root, "job-*")
    made = Scratch(root / f"job-{token_hex(6)}")
    gone += not made.path.exists()
    made.remove()
print(gone)
"""


def test_of_jobs_that_begin_at_one_moment_none_removes_the_folder_of_another(tmp_path: Path) -> None:
    """It was there before its lock was held: of two Spark commands one had no folder for what it had just written there."""
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [job.communicate()[0].strip() for job in jobs] == ["0", "0"]


def test_what_is_kept_is_for_people(tmp_path: Path) -> None:
    kept = Scratch(tmp_path / "job-1")
    kept.keep()
    assert sweep(tmp_path, "job-*") == [] and kept.path.exists()


def test_a_block_removes_its_folder(tmp_path: Path) -> None:
    with scratch(tmp_path, "job-") as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
