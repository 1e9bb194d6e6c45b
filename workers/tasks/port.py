"""What every part of a worker needs of it, a task too. One rule: nothing in here knows what a task is.

The ports that do stand in `task.py` and in `workers/worker/ports.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pipeline.tables.table import StoreView
from state.log.protocol import GroupLog
from workers.spec import WorkerSpec
from workers.surroundings import Surroundings


class SharedTables(Protocol):
    """The worker's global tables, as a task knows them; `known` once what was there at its start has been read."""

    @property
    def stores(self) -> Mapping[str, StoreView]: ...
    async def known(self) -> None: ...


class Port(Protocol):
    """What every part of a worker needs of it: how it was started, the world around it, its log; and a way to end it."""

    @property
    def spec(self) -> WorkerSpec: ...
    @property
    def surroundings(self) -> Surroundings: ...
    @property
    def log(self) -> GroupLog: ...

    def crashed(self, error: BaseException) -> None:
        """What must not happen: the worker ends with it."""
