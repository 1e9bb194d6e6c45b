"""Where attempts of Spark's tasks write until one of them is whole: a task that is tried again, or twice at a time, counts once.

One rule: an attempt makes its draft in a folder that is there as long as the stage runs, and makes no folder above it; the first that
is whole gets the name of the task, by a rename. After the stage the folder is gone, so whatever an attempt that came too late still
does leads nowhere: Spark kills it, and not at once. In the flow: `opened` in the driver, `Draft` on executors.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


class Draft:
    """What one attempt writes of a task. Raises FileNotFoundError where its stage is over."""

    def __init__(self, attempts: Path, task: str, attempt: int) -> None:
        self.path = attempts / f"{task}.{attempt}"
        self.path.mkdir(mode=FOLDER)

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
