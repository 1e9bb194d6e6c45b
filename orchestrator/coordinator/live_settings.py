"""The group's live settings: what an operator has set for the group while it runs, above what its instances are configured with.

One rule: a live setting is the coordinator's alone, so that it acts at once and on all members; what a worker goes by itself
(its heartbeats, what it was promised, when its learner is ready) is of its instance and changes with a bounce. They are in
the log before they act, and every coordinator goes by them until they are taken back.
"""

from __future__ import annotations

from typing import Any, ClassVar

from orchestrator.coordinator.requests import Request
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.shell import Coordinator
from orchestrator.group import events as ev
from orchestrator.setting import written
from orchestrator.settings import GROUP, live_changes, overlaid


class SettingsRequest(Request, tag="settings", frozen=True):
    """The group's settings as they are now."""


class SetSettingsRequest(Request, tag="set-settings", frozen=True):
    """Change these, `name=value` each; an empty value takes one back."""

    right: ClassVar[Right] = Right.SCALE
    alters: ClassVar[bool] = True
    changes: str  # a line each


async def show(coordinator: Coordinator, request: SettingsRequest) -> dict[str, Any]:
    """Each setting of the group: its value, and whether it was set live."""
    return _facts(coordinator)


async def change(coordinator: Coordinator, request: SetSettingsRequest) -> dict[str, Any]:
    """Writes the changes down, then has the group go by them. Raises WrongUse, NotCoordinator."""
    changes = live_changes(request.changes)
    async with coordinator.operations_lock:  # of two operators one is first
        kept = {name: text for name, text in {**coordinator.live, **changes}.items() if text}
        settings = overlaid(coordinator.configured, kept)
        await coordinator.ledger.put_settings(kept)
        coordinator.live = kept
        if settings != coordinator.settings:
            coordinator.settings = settings
            coordinator.group.reconsider(settings)
            coordinator.event(ev.Tick())
    return _facts(coordinator)


def _facts(coordinator: Coordinator) -> dict[str, Any]:
    return {
        "live": dict(coordinator.live),
        "settings": {row.name: written(row.field, getattr(coordinator.settings, row.field)) for row in GROUP},
    }
