"""Whether an application is looked after: what its notes in the log say, and what they cannot know."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clocks import wall_ms
from orchestrator.coordinator import election
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.errors import RefusedBySafety
from state.log.group_store import MetadataKind
from state.log.sqlite import open_sqlite
from tests.group.coordinators import CREDENTIALS
from workers.fleet import client
from workers.fleet.presence import FLEET, FRESH_MS, NAMED, is_looked_after, may_be_looked_after, this_process
from workers.instance.ledger import give_back

KINDS = pytest.mark.parametrize("kind, key", [(FLEET, "fleet"), (NAMED, "i7")], ids=["fleet", "named"])


def note(at_ms: int, **facts: Any) -> bytes:
    """Of a process of another machine: its number says nothing here."""
    there = {**this_process(), "host": "elsewhere", "pid": 1 << 22, "started": "1", "instances": ["i7"], "at_ms": at_ms}
    return json.dumps({**there, **facts}).encode()


@KINDS
async def test_a_host_that_is_gone_refuses_nothing(
    kind: MetadataKind, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note stays for ever: a reset was refused until the same name had run once more, which one of a container may never."""
    monkeypatch.setattr(election.Election.__init__, "__defaults__", (200,))
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await log.put_metadata("app", kind, key, note(wall_ms() - FRESH_MS - 1))
    assert not await is_looked_after(log, "app")  # it has never had a coordinator
    lease = await log.acquire("app", "i7", "elsewhere:1", None)
    assert lease is not None
    assert not await is_looked_after(log, "app")  # nobody renews it
    assert await may_be_looked_after(log, "app")
    await log.close()


@KINDS
async def test_who_runs_on_another_machine_is_there(kind: MetadataKind, key: str, tmp_path: Path) -> None:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await log.put_metadata("app", kind, key, note(wall_ms()))
    assert await is_looked_after(log, "app")  # it may not have joined yet
    await log.put_metadata("app", kind, key, note(wall_ms() - FRESH_MS - 1))
    lease = await log.acquire("app", "i7", "elsewhere:1", None)
    assert lease is not None
    looking = asyncio.create_task(is_looked_after(log, "app"))
    while not looking.done():
        lease = await log.renew(lease)
        await asyncio.wait([looking], timeout=0.05)
    assert looking.result()  # somebody coordinates the group
    await give_back(log, lease)
    assert not await is_looked_after(log, "app")
    await log.close()


@KINDS
async def test_what_was_started_and_does_not_coordinate_yet_is_to_be_waited_for(
    kind: MetadataKind, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to start it, beside executors of Spark that were just starting."""
    monkeypatch.setattr(client, "ALONE_S", 0.2)
    log = await open_sqlite(tmp_path / "log.db", create=True)
    asking = client.Client(log, "app", lambda: CREDENTIALS)
    with pytest.raises(RefusedBySafety, match="; start it with `orchestrator run`"):
        await asking.ask(StatusRequest(), retry_s=1.0)
    await log.put_metadata("app", kind, key, note(wall_ms()))
    with pytest.raises(RefusedBySafety, match="none coordinates yet: wait for them with `orchestrator wait app`"):
        await asking.ask(StatusRequest(), retry_s=1.0)
    await asking.close()
    await log.close()
