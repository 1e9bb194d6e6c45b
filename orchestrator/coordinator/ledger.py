"""What the coordinator needs of the log, under its lease. One rule: every write of it fails once the lease is lost.

The log itself lives in state/; workers/ joins the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from orchestrator.errors import OrchestratorError
from orchestrator.group.scale_down import ScaleDowns
from orchestrator.model import Owner, TaskId


class NotCoordinator(OrchestratorError):
    """Another coordinator holds the lease at a higher term: stop at once."""


class Ledger(Protocol):
    """Owner records, fences and operations, written under one term."""

    term: int

    async def renew(self) -> None:
        """Keep the lease. Raises NotCoordinator."""

    async def owners(self) -> Sequence[Owner]: ...

    async def record_owners(self, records: Sequence[Owner]) -> None:
        """Raises NotCoordinator."""

    async def fence(self, transactional_id: str) -> tuple[TaskId, ...]:
        """From now on the log refuses `transactional_id`; returns the tasks it had. Raises NotCoordinator."""

    async def generation(self) -> tuple[int, frozenset[str]]:
        """The last generation that was written down, and its members; 0 where none was."""

    async def put_generation(self, generation: int, members: frozenset[str]) -> None:
        """Raises NotCoordinator."""

    async def scale_downs(self) -> ScaleDowns:
        """Those that run, and who left, as written down."""

    async def settings(self) -> Mapping[str, str]:
        """The settings that were set for the group while it ran, as text by name."""

    async def put_settings(self, settings: Mapping[str, str]) -> None:
        """Raises NotCoordinator."""

    async def put_operations(self, facts: Sequence[Mapping[str, object]]) -> None:
        """Those that run. Raises NotCoordinator."""

    async def put_leavers(self, leavers: Mapping[str, str]) -> None:
        """Those of scale-downs that are over. Raises NotCoordinator."""
