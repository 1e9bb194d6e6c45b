"""A query of a task that is still being restored, for longer than it is waited for: what it says is never taken for all that was committed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import App, Tumbling
from orchestrator.coordinator import messages
from orchestrator.coordinator.secret import Right
from orchestrator.errors import NotThere, OrchestratorError
from orchestrator.model import TaskId
from state.log.memory import MemoryLog
from tests.workers.test_direct_queries import Answering, client_of
from workers.commands import query_place
from workers.commands.query import NEWEST, query, report
from workers.commands.query_windows import Range
from workers.fleet.client import description
from workers.prepare import prepare

TASKS = [TaskId(0, 0), TaskId(0, 1)]
SHOWN = argparse.Namespace(app="bank", table="balances", at=None, first=None, until=None, json=False, key="ann")
Answer = Callable[[Any], messages.Found | messages.Scanned]


class Restoring(Answering):
    """An instance whose worker answers as a function says."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("S1", None)
        self.answer = answer

    async def _answer(self) -> None:
        while True:
            self.link.send(self.answer(await self.link.receive_down()))


def of_route(app: App) -> Any:
    return app.table("balances", key=str, value=int, route=lambda key: key[0])


def of_hours(app: App) -> Any:
    return app.table("balances", key=str, value=int, window=Tumbling(hours=1))


async def asked(declare: Callable[[App], Any], answer: Answer, wanted: Range = NEWEST) -> dict[str, Any]:
    app = App("bank", partitions=2)
    app.processor(app.topic("payments", key=str, value=int), declare(app))(lambda payment, balances: None)
    log, instance = MemoryLog(markers=False), Restoring(answer)
    await prepare(log, app)
    async with client_of(log, instance, TASKS, Right.READ) as client:
        return await query(client, await description(log, "bank"), "balances", "ann", log, wanted)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_place, "FIND_S", -1.0)


async def test_a_key_that_may_be_in_a_task_that_is_restored_is_not_said_to_be_absent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table with a route is looked for in every task: what the last of them said stood for all."""
    facts = await asked(of_route, lambda lookup: messages.Found(lookup.id, None, "active", 7 * (lookup.task == "0_0")))
    assert (facts["found"], facts["task"], facts["restore_lag"]) == (False, "0_0", 7)
    for as_json in (False, True):  # it was 5 with --json: the key is not there
        with pytest.raises(OrchestratorError, match="0_0 is being restored, 7 records behind") as raised:
            report(argparse.Namespace(**{**vars(SHOWN), "json": as_json}), facts)
        assert raised.value.exit_code == 1 and bool(capsys.readouterr().out) is as_json
    facts = await asked(of_route, lambda lookup: messages.Found(lookup.id, None, "active", 0))
    with pytest.raises(NotThere):
        report(SHOWN, facts)


async def test_a_value_from_a_task_that_is_restored_comes_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    value = (5).to_bytes(8, "big")
    facts = await asked(of_route, lambda lookup: messages.Found(lookup.id, value, "active", 1))
    assert report(SHOWN, facts) == 0
    shown = capsys.readouterr()
    assert shown.out == "5\n" and "0_0 is being restored, 1 record behind" in shown.err


async def test_windows_that_were_read_before_the_restore_had_ended_are_known_to_be_old() -> None:
    """They are read one after the other: the last one was, when all was there."""
    lags, values = iter([7, 0, 0]), iter([1, 2])

    def answer(wanted: Any) -> messages.Found | messages.Scanned:
        if isinstance(wanted, messages.Lookup):
            return messages.Found(wanted.id, None, "active", 0)
        pairs = [(wanted.start, value.to_bytes(8, "big")) for value in (next(values, None),) if value is not None]
        return messages.Scanned(wanted.id, pairs, False, "active", next(lags))

    facts = await asked(of_hours, answer)
    assert [one["value"] for one in facts["windows"]] == [2] and facts["restore_lag"] == 7


async def test_windows_of_times_before_1970() -> None:
    """`--from 1900-01-01` was an internal error; each window begins after it."""

    def answer(wanted: Any) -> messages.Found | messages.Scanned:
        if isinstance(wanted, messages.Lookup):
            return messages.Found(wanted.id, None, "active", 0)
        first = wanted.start == b"w" + bytes(8) + b"ann"
        pairs = [(wanted.start, (1).to_bytes(8, "big"))] if first else []
        return messages.Scanned(wanted.id, pairs, False, "active", 0)

    facts = await asked(of_hours, answer, Range(first_ms=-2_208_988_800_000))
    assert [one["start_ms"] for one in facts["windows"]] == [0]
    for wanted in (Range(at_ms=-1), Range(until_ms=-1)):
        assert not (await asked(of_hours, answer, wanted))["windows"]
