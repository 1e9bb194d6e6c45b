"""The lease that a command holds: its loss has one message, and what a log refuses has its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety
from state.errors import LeaseLost, LogFull, StateError
from state.log.memory import MemoryLog
from workers.fleet import held_lease
from workers.fleet.held_lease import lease_held


async def holding(log: MemoryLog, **more: Any) -> None:
    async with lease_held(log, "bank", "reset", **more), asyncio.timeout(30):
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("said", "raised", "words"),
    [
        (LeaseLost("term 4"), RefusedBySafety, r"took over while reset was at work \(term 4\); stop it"),
        (LogFull("no space: free some"), LogFull, "^no space: free some$"),
        (StateError("odd"), StateError, "^odd$"),
    ],
)
async def test_what_a_beat_meets(
    said: StateError, raised: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(log: Any, lease: Any) -> Any:
        raise said

    monkeypatch.setattr(held_lease, "BEAT_S", 0.01)
    monkeypatch.setattr(MemoryLog, "renew", refused)
    with pytest.raises(raised, match=words):
        await holding(MemoryLog())


async def test_a_patient_command_goes_on_beside_a_log_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next beat that the log takes is the lease's, and the loss of it is still met."""
    answers: list[StateError] = [LogFull("no space"), LogFull("no space"), LeaseLost("term 4")]

    async def refused(log: Any, lease: Any) -> Any:
        raise answers.pop(0)

    monkeypatch.setattr(held_lease, "BEAT_S", 0.01)
    monkeypatch.setattr(MemoryLog, "renew", refused)
    with pytest.raises(RefusedBySafety, match="took over"):
        await holding(MemoryLog(), is_patient=True)
    assert not answers
