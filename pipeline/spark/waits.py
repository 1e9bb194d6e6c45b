"""Errors that wait for a client, as warnings of the command: executors write them into the stage's folder, the driver reads them.

One rule: they are for people alone, as the counts of rows are: where none can be written, nothing else changes. In the flow: `stage`
writes, `engine` reads, `running` shows.
"""

from __future__ import annotations

import logging
from pathlib import Path
from secrets import token_hex

logger = logging.getLogger("orchestrator.spark")
WAITS = ".waits"


class Waits:
    """Of one attempt at a task."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"{number}.{token_hex(4)}{WAITS}"
        self._text = ""

    def begin(self, text: str) -> None:
        if text == self._text:
            return
        self._text = text
        draft = self._path.with_suffix(".draft")
        try:
            draft.write_text(text)
            draft.replace(self._path)
        except OSError as error:  # the stage is over, or the disk is full, which whoever writes rows meets and says
            logger.debug("%s: %s", self._path, error)

    def over(self) -> None:
        if self._text:
            self._text = ""
            self._path.unlink(missing_ok=True)


def waits_of(folder: Path) -> set[str]:
    """What waits in the stage with this folder."""
    found = set()
    for path in folder.glob(f"*{WAITS}"):
        try:
            found.add(path.read_text())
        except FileNotFoundError:  # it is over
            continue
    return found
