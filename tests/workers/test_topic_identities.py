"""What an app has run on: what is kept of it, and whose a changelog is that the app does not know."""

from __future__ import annotations

import pytest

from orchestrator import App, Record, Table
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicSpec
from workers import topic_identities
from workers.errors import AppRefused
from workers.prepare import prepare
from workers.topic_identities import TOPIC_IDS

CHANGES = "bank-balances-changelog"


def bank() -> App:
    app = App("bank", partitions=2)
    payments, balances = (
        app.topic("payments", key=str, value=int),
        app.table("balances", key=str, value=int, default=int),
    )

    @app.processor(payments, balances)
    def settle(payment: Record[str, int], balances: Table[str, int]) -> None:
        balances[payment.key] += payment.value

    return app


async def test_a_changelog_of_another_application_is_refused_by_its_name() -> None:
    log = MemoryLog()
    made = await log.create_topic(TopicSpec(CHANGES, 2, "changelog"))
    await topic_identities.check(log, bank())  # an empty one may have been made for it
    await log.append({Partition(CHANGES, 0): [NewRecord(b"k", b"v", 0)]})
    with pytest.raises(AppRefused, match="holds records of an application of this id"):
        await topic_identities.check(log, bank())
    await log.put_metadata("other", TOPIC_IDS, CHANGES, made.topic_id.encode())
    with pytest.raises(AppRefused, match=f"{CHANGES} belongs to application 'other'"):
        await topic_identities.check(log, bank())


async def test_what_is_accepted_is_kept_anew() -> None:
    log = MemoryLog()
    await topic_identities.keep(log, await prepare(log, bank()))
    await log.delete_topic("payments")
    with pytest.raises(AppRefused, match="topic payments was deleted since the app ran"):
        await topic_identities.check(log, bank())
    assert await topic_identities.accept(log, "bank", "payments")
    assert not await topic_identities.accept(log, "bank", "nothing")
    await topic_identities.check(log, bank())
    await topic_identities.keep(log, await prepare(log, bank()))
    await topic_identities.check(log, bank())
