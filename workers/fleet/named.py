"""`orchestrator run --name NAME`: one instance that joins the group by its name, or begins it, beside fleets and others.

One rule: one process has a name at a time. On this machine a lock of the kernel ensures it, elsewhere the coordinator; of two
that come at one moment the log takes one. The name is the member's: what comes back under it has its tasks and its state
again. Everything else is as with a fleet of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import RefusedBySafety
from state.log.group_store import GroupStore
from workers.fleet.fleet import Elsewhere, Fleet
from workers.fleet.hosts import Host
from workers.fleet.presence import (
    NAMED,
    fleet_of,
    hold,
    is_coordinating,
    is_fresh,
    is_here,
    is_running,
    refuse_beside_command,
    this_process,
)
from workers.spec import InstanceSpec

LOCK = "instance.lock"


class NamedInstance(Fleet):
    """A fleet of one, by the name that its spec has."""

    after_failure = ""
    _kind = NAMED

    def __init__(
        self, host: Host, log_: GroupStore, base: InstanceSpec, say: Callable[[str], None], elsewhere: Elsewhere
    ) -> None:
        super().__init__(host, log_, base, say, elsewhere)
        self._name = self._key = base.instance

    def claim(self) -> None:
        """See Fleet. Raises RefusedBySafety."""
        folder = Path(self._base.state_dir) / self._base.application / self._name
        self._lock = hold(folder / LOCK, self._refusal(f"as process {{holder}}, with state in {folder}"))

    async def announce(self) -> None:
        """Takes the name in the log. Raises RefusedBySafety where another process has it."""
        application = self._base.application
        while True:
            fleet = await fleet_of(self._log, application)
            refuse_beside_command(application, fleet or {})
            if fleet is not None and is_here(fleet) and self._name in fleet["instances"]:
                raise RefusedBySafety(self._refusal(f"in the fleet of process {fleet['pid']}"))
            found = await self._log.metadata(application, NAMED, self._name)
            note = json.loads(found) if found else {}
            self._refuse_another(note)
            other = await self._elsewhere({self._name})
            if other is None and note and not is_here(note) and await is_coordinating(self._log, application, note):
                other = note["host"]
            if other is not None:
                raise RefusedBySafety(
                    f"{self._refusal(f'on {other}')}; where that has ended, try again after the session timeout"
                )
            self._note, self._before = self._facts([self._name]), found
            if await self._log.replace_metadata(application, NAMED, self._name, found, self._note):
                break
        try:  # a command that began meanwhile has looked for this name before, or is seen now
            refuse_beside_command(application, await fleet_of(self._log, application) or {})
        except RefusedBySafety:
            await self._log.replace_metadata(application, NAMED, self._name, self._note, None)
            raise

    def _refuse_another(self, other: dict[str, Any]) -> None:
        if other and is_here(other) and is_running(other) and other["pid"] != this_process()["pid"]:
            raise RefusedBySafety(self._refusal(f"as process {other['pid']}, with state in {other['state_dir']}"))
        if other and not is_here(other) and is_fresh(other):
            raise RefusedBySafety(f"{self._refusal('on ' + other['host'])}; where that has ended, try again in 10 s")

    def _refusal(self, where: str) -> str:
        return (
            f"instance '{self._name}' of '{self._base.application}' runs already {where}; stop that one first, or choose "
            "another --name"
        )

    def _place(self) -> dict[str, Any]:
        return {"instance": self._name}

    async def _keep_up(self) -> None:
        """It is never asked for more instances."""
