"""The error with which a worker ends when its topics have been deleted or created again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import App, Record, Table
from orchestrator.errors import OrchestratorError
from state.errors import LogUnavailable, UnknownTopic
from state.log.memory import MemoryLog
from state.log.protocol import Retention, TopicInfo
from workers.prepare import prepare
from workers.worker import growth


class Away(MemoryLog):
    """Once it is away it answers with an error, or not at all."""

    answer: str = "at once"

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        if self.answer == "never":
            await asyncio.Event().wait()
        if self.answer == "an error":
            raise LogUnavailable("no broker answers")
        return await super().topics(names)


@pytest.mark.parametrize("answer", ["at once", "an error", "never"])
async def test_a_log_that_is_away_takes_no_error_away(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose topic was not found ended with what a second look at the log failed with, or not before that looked again."""
    monkeypatch.setattr(growth, "EXPLAIN_S", 0.01)
    app = App("bank")

    @app.processor(app.topic("payments", key=str, value=int))
    def look(payment: Record[str, int]) -> None:
        pass

    log, error = Away(), UnknownTopic("the log has no topic payments")
    worker: Any = SimpleNamespace(log=log, prepared=await prepare(log, app))
    await log.delete_topic("payments")
    log.answer = answer
    async with asyncio.timeout(10):
        found = await growth.explained(worker, error)
    if answer == "at once":
        assert isinstance(found, OrchestratorError) and "topic payments was deleted while the app ran" in str(found)
    else:
        assert found is error


async def test_an_input_by_whose_number_state_lies_ends_the_worker_once_others_have_given_it_more() -> None:
    """Producers go by the new number within minutes: keys were counted a second time, where their state was not, beside a warning alone."""
    app = App("bank", partitions=3)
    payments = app.topic("payments", key=str, value=int)
    by_shop = payments.rekey("by-shop", key=str, by=lambda payment: payment.key)
    notes = app.topic("notes", key=str, value=int)

    @app.processor(by_shop, app.table("sums", key=str, value=int))
    def add(payment: Record[str, int], sums: Table[str, int]) -> None:
        sums[payment.key] = payment.value

    @app.processor(notes, app.table("last", key=str, value=int))
    def keep(note: Record[str, int], last: Table[str, int]) -> None:
        last[note.key] = note.value

    log = MemoryLog()
    prepared = await prepare(log, app)
    for name in prepared.topics:
        await log.grow_topic(name, 5)
    found = await log.topics(list(prepared.topics))
    (name,) = growth.others(prepared, found)
    assert name == "notes", "no state lies by that of payments, and this app alone writes the rest"
    assert str(growth.others(prepared, found)[name]).startswith(
        "'bank': topic notes was given 5 partitions while the app ran, and state lies by 3: records would be counted where"
    )
    assert [line.split()[1] for line in growth.ignored(prepared, found)] == sorted(
        prepared.topics.keys() - {"notes", "payments"}
    )
    found["payments"] = replace(found["payments"], kind="changelog")
    assert growth.seen_again(prepared, found).topics["payments"].partitions == 5, "an input may be compacted, too"


async def test_a_changelog_that_is_no_longer_compacted_is_named() -> None:
    """By Kafka's tools, say: a start refuses it, and what runs went on without a word until its values were gone."""
    app = App("bank")

    @app.processor(app.topic("payments", key=str, value=int), app.table("sums", key=str, value=int))
    def add(payment: Record[str, int], sums: Table[str, int]) -> None:
        sums[payment.key] = payment.value

    log = MemoryLog()
    prepared = await prepare(log, app)
    found = await log.topics(list(prepared.topics))
    assert growth.ignored(prepared, found) == []
    found["bank-sums-changelog"] = replace(found["bank-sums-changelog"], kind="plain")
    (line,) = growth.ignored(prepared, found)
    assert line.startswith("changelog bank-sums-changelog is not compacted any more") and "cleanup.policy" in line
    found["bank-sums-changelog"] = replace(found["bank-sums-changelog"], kind="changelog", retention=Retention(60_000))
    (line,) = growth.ignored(prepared, found)
    assert line.startswith("changelog bank-sums-changelog is compacted, and deleted from with time or size, too")
