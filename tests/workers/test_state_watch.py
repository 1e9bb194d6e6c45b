"""What a fleet reports of folders that are deleted while it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from workers.fleet.state_watch import StateWatch


def test_what_was_deleted_is_reported_once_and_made_again(tmp_path: Path) -> None:
    root = tmp_path / "bank"
    for name in ("i1", "i2", "i3"):
        (root / name / "0_0").mkdir(parents=True)
    watch = StateWatch(root)
    here = ["i1", "i2", "i3", "i4"]
    assert watch.deleted(here) == []
    shutil.rmtree(root / "i1")
    assert watch.deleted(here) == [], "more of it may go at this moment"
    shutil.rmtree(root / "i2")
    assert watch.deleted(here) == []
    (root / "i2").mkdir()  # made again meanwhile: what was in it is gone all the same
    assert watch.deleted(here) == [root / "i1", root / "i2"]
    assert (root / "i1").is_dir() and watch.deleted(here) == [] == watch.deleted(here)
    shutil.rmtree(root / "i3")
    assert watch.deleted(here[:2]) == [] == watch.deleted(here[:2]), "i3 has left, and nothing uses its folder"
    shutil.rmtree(root)
    assert watch.deleted(here[:2]) == []
    assert watch.deleted(here[:2]) == [root]
    assert (root / "i1").is_dir() and watch.deleted(here[:2]) == [] == watch.deleted(here[:2])
    watch.close()
