"""Where attempts of Spark's tasks write until one of them is whole: a task that is tried again, or twice at a time, counts once.

One rule: an attempt makes its draft in a folder that is there as long as the stage runs, and makes no folder above it; the first that
is whole gets the name of the task, by a rename. After the stage the folder is gone, so whatever an attempt that came too late still
does leads nowhere: Spark kills it, and not at once. In the flow: `opened` in the driver, `Draft` on executors.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import OrchestratorError
from state import manifest
from state.private import FOLDER


@contextmanager
def opened(folder: Path) -> Iterator[Path]:
    """The folder of the attempts of one stage; at its end no name in it leads anywhere, at once."""
    folder.mkdir(mode=FOLDER)
    try:
        yield folder
    finally:
        late = folder.with_name(f"{folder.name}-late")
        folder.rename(late)
        shutil.rmtree(late, ignore_errors=True)


class NotShared(OrchestratorError):
    """An executor does not find the folder in which the driver works."""


class Draft:
    """What one attempt writes of a task. Raises FileNotFoundError where its stage is over, NotShared."""

    def __init__(self, attempts: Path, task: str, attempt: int) -> None:
        self.path = attempts / f"{task}.{attempt}"
        try:
            self.path.mkdir(mode=FOLDER)
        except FileNotFoundError:
            if attempts.parent.exists():
                raise
            raise NotShared(
                f"executors write what they compute to {attempts.parent}, which is not there on {socket.gethostname()}; choose a "
                "folder that the driver and all machines share, with --snapshots, or for verify and audit in the variable TMPDIR"
            ) from None

    def folder(self, name: str) -> Path:
        """A folder in it."""
        path = self.path / name
        path.mkdir(mode=FOLDER, exist_ok=True)
        return path

    def settle(self, final: Path) -> bool:
        """See `manifest.settle`."""
        return manifest.settle(self.path, final)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
