"""The lease that a command holds: its loss has one message, and what a log refuses has its own."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety
from state.errors import LeaseLost, LogFull, StateError
from state.log.memory import MemoryLog
from tests.workers.test_fleet import QuietHost, nowhere_else
from workers.fleet import held_lease, presence
from workers.fleet.fleet import Fleet
from workers.fleet.held_lease import lease_held, start_refused
from workers.fleet.named import NamedInstance
from workers.fleet.presence import FLEET, FRESH_MS, NAMED
from workers.spec import InstanceSpec


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


def starting(kind: type[Fleet], log: MemoryLog, root: Path) -> Fleet:
    spec = InstanceSpec("bank:app", "bank", "a", "kafka://h:1", str(root))
    return kind(QuietHost(), log, spec, print, nowhere_else)


async def note_of(log: MemoryLog) -> dict[str, Any]:
    found = await log.metadata("bank", FLEET, "fleet")
    return {} if found is None else dict(json.loads(found))


@pytest.mark.parametrize("kind", [Fleet, NamedInstance])
@pytest.mark.parametrize("host", ["this", "other"])
async def test_nothing_starts_beside_a_command_that_must_be_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Fleet], host: str
) -> None:
    """A named instance started, and waited for the lease; a fleet on another host did so after 10 s: once a copy of the log had
    ended, the application ran on both."""
    log = MemoryLog()
    async with start_refused(log, "bank", tmp_path, "log copy"):
        if host == "other":
            here = socket.gethostname()
            monkeypatch.setattr(presence.socket, "gethostname", lambda: f"not {here}")
        with pytest.raises(RefusedBySafety, match="`orchestrator log copy` is at work on 'bank'"):
            await starting(kind, log, tmp_path).announce()
        if host == "other":
            monkeypatch.undo()
    assert await note_of(log) == {} and await log.metadata("bank", NAMED, "a") is None
    await starting(kind, log, tmp_path).announce()


async def test_the_note_of_a_command_stays_young_and_is_no_more_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, ahead_ms = MemoryLog(), [0]
    monkeypatch.setattr(held_lease, "FRESH_MS", 4)
    monkeypatch.setattr(held_lease, "wall_ms", lambda: presence.wall_ms() + ahead_ms[0])
    async with start_refused(log, "bank", tmp_path, "reset"), asyncio.timeout(30):
        first = (await note_of(log))["at_ms"]
        ahead_ms[0] = 2 * FRESH_MS
        while (await note_of(log))["at_ms"] < first + FRESH_MS:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0)
        await log.put_metadata("bank", FLEET, "fleet", b'{"pid": 1, "host": "another"}')
    assert await note_of(log) == {"pid": 1, "host": "another"}, "a fleet that runs by now keeps its own"


async def test_a_command_does_not_begin_beside_an_instance_that_began_meanwhile(tmp_path: Path) -> None:
    log = MemoryLog()
    await starting(NamedInstance, log, tmp_path).announce()
    with pytest.raises(RefusedBySafety, match="'bank' runs as a; stop it, then run reset again"):
        async with start_refused(log, "bank", tmp_path, "reset"):
            pytest.fail("it began")
    assert await note_of(log) == {}
