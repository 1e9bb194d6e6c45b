"""Questions to a coordinator that does not answer, that another one has followed, or that is of an older version."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from orchestrator.coordinator import admin, messages
from orchestrator.coordinator.requests import Request, StatusRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.errors import RefusedBySafety, TimedOut
from orchestrator.model import Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from state.log.memory import MemoryLog
from tests.group.coordinators import CREDENTIALS, Look, joined, listening
from workers.connection import asking
from workers.fleet.client import Client


class Change(Request, tag="change", frozen=True):
    """What a test wants to have changed."""

    alters = True


async def test_a_question_without_an_answer_is_asked_of_who_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scale-down --wait` and `scale-up --wait` ended with 3 where the coordinator's process stood still, though another one had
    taken its place long before."""
    monkeypatch.setattr(asking, "ASK_S", 0.1)
    log, asked = MemoryLog(), asyncio.Event()

    async def silent(coordinator: Coordinator, request: Request) -> None:
        await lease_of(log, address)
        asked.set()
        await asyncio.Event().wait()

    stuck = Coordinator("bench", Settings(), KeptLedger([]), [], {StatusRequest: silent, Look: silent, Change: silent})
    follower = Coordinator("bench", Settings(), KeptLedger([]), [Task(TaskId(0, 0))], admin.HANDLERS)
    (first, stands_still), (second, address) = await listening(stuck), await listening(follower)
    serving = [asyncio.create_task(one.serve()) for one in (stuck, follower)]
    async with asyncio.timeout(30):
        member = await joined(address)
        questions = Client(log, "bench", lambda: CREDENTIALS)
        await lease_of(log, stands_still)
        assert (await questions.ask(StatusRequest()))["term"] == 1 and asked.is_set()
        for request, error in ((Look(), RefusedBySafety), (Change(), TimedOut)):
            await questions.close()
            await lease_of(log, stands_still)
            with pytest.raises(error, match="did not answer within"):
                await questions.ask(request, retry_s=0.0)
        await questions.close()
        await member.close()
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await first.close()
        await second.close()


async def lease_of(log: MemoryLog, address: str) -> None:
    before = await log.lease("bench")
    assert await log.acquire("bench", "holder", address, before) is not None


def test_a_field_that_was_not_set_is_no_field_to_an_older_coordinator() -> None:
    """It refused each `status` of a newer version, and `run --name` of one could not join."""
    assert msgspec.msgpack.decode(messages.ask(1, StatusRequest(counted=True)).request) == {
        "type": "status",
        "counted": True,
    }
