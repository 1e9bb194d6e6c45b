"""What happened to an instance's tasks, as JSON lines in its state directory: restores, starts, releases, pauses.

One rule: a line is a fact with its wall time in ms, appended whole; nothing is ever read back by the instance itself.
Reports (the demo's, a post-mortem's) read it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from orchestrator.clocks import wall_ms
from state import private

log = logging.getLogger("orchestrator.journal")
NAME = "journal.jsonl"


class Journal:
    """Appends to `<state>/<app>/<instance>/journal.jsonl`."""

    def __init__(self, path: Path, **always: Any) -> None:
        self._path = path
        self._always = always
        self._failed = False

    def write(self, what: str, **facts: Any) -> None:
        """A journal that cannot be written costs its lines and nothing else; one warning is logged."""
        line = json.dumps({"at_ms": wall_ms(), "what": what, **self._always, **facts})
        try:
            try:
                self._append(line)
            except FileNotFoundError:  # the folder was deleted while the instance runs
                private.make_folder(self._path.parent)
                self._append(line)
        except OSError as error:
            if not self._failed:
                log.warning(
                    "the journal %s cannot be written (%s); what happens goes on unrecorded", self._path, error.strerror
                )
            self._failed = True

    def _append(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")


def read_journals(folder: Path) -> list[dict[str, Any]]:
    """All lines of all instances of an application, in order of time; a line that is cut off, or is none of ours, is left out."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"*/{NAME}")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("at_ms"), int) and "what" in row:
                rows.append(row)
    return sorted(rows, key=lambda row: row["at_ms"])
