"""Snapshots that are being made: what a job that was killed has left of one goes with the next job in the same folder.

One rule: beside the folder of a snapshot lies another, hidden, whose lock is held by the process that makes it. Where that lock is
free and the snapshot has no manifest, no run ever writes it to its end, unless the folder has all that was computed (`kept_work`):
that stays, also where the run that was to write it was killed. Used by `backfill` and `snapshotting`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from state import manifest
from state.scratch import Scratch, sweep

WORK = ".work"
KEPT = "computed.json"


def begin(root: Path, name: str) -> Scratch:
    """The folder beside that of a snapshot. Who makes the snapshot removes it at the end."""
    return Scratch(root / f".{name}{WORK}")


def clean(root: Path) -> list[Path]:
    """Removes what jobs that were killed have left below `root`; returns which folders they worked in."""
    gone = sweep(root, f".*{WORK}", but_with=KEPT)
    for work in gone:
        snapshot = root / work.name.removeprefix(".").removesuffix(WORK)
        if not (snapshot / manifest.MANIFEST).exists():
            shutil.rmtree(snapshot, ignore_errors=True)
    return gone
