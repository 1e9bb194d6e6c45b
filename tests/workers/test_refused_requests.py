"""What an operator asked for and the log does not take: the answer is the log's reason, with its exit code."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.coordinator import admin, messages
from orchestrator.coordinator.live_settings import SetSettingsRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.model import Settings, Task, TaskId
from state.errors import LogFull, LogTimedOut, OutcomeUnknown, StateError
from state.log.group_store import Lease, MetadataKind
from state.log.memory import MemoryLog
from tests.group.coordinators import CREDENTIALS, listening
from workers.instance.ledger import SETTINGS, LogLedger


class Full(MemoryLog):
    """A log that takes no settings of a group."""

    def __init__(self, error: StateError) -> None:
        super().__init__(markers=False)
        self._error = error

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        if kind == SETTINGS:
            raise self._error
        await super().put_metadata(application, kind, key, value, lease=lease)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogFull("no space is left: free some"), 1),
        (LogTimedOut("the log cannot be used: start it"), 6),
        (OutcomeUnknown("look at it"), 1),
    ],
    ids=["full", "away for long", "unknown"],
)
async def test_a_log_that_takes_no_settings_names_why(
    error: StateError, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was an internal error, with a traceback in the log of the instance."""
    log = Full(error)
    lease = await log.acquire("bench", "i1", "", None)
    assert lease is not None
    coordinator = Coordinator("bench", Settings(), LogLedger(log, lease), [Task(TaskId(0, 0))], admin.HANDLERS)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    try:
        async with asyncio.timeout(30):
            link = await connect(address, CREDENTIALS)
            link.send(messages.ask(1, SetSettingsRequest("max-learners=1")))
            answer = await link.receive_down()
            await link.close()
        assert isinstance(answer, messages.Answer)
        assert (answer.error, answer.code) == (str(error), code)
        assert "internal error" not in caplog.text and not serving.done()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()
