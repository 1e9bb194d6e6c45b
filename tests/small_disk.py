"""A disk that is soon full, as a fixture. It takes root, so that machines without skip what needs one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB, for the time of a test."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True)
    except OSError:
        pytest.skip("this system has no mount")
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
