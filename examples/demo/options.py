"""What can be chosen for a tour, and where its files lie. One rule: it imports nothing of the tour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What can be changed. Months: `history` are backfilled, `live` follow."""

    folder: Path
    on: str
    seed: int
    rate: int
    instances: int
    history: int
    live: int
    json: bool

    @property
    def log(self) -> Path:
        return self.folder / "flights.db"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def snapshots(self) -> Path:
        return self.folder / "snapshots"
