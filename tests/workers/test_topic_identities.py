"""What an app has run on: what is kept of it, and whose a changelog is that the app does not know."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from orchestrator import App, Record, Sink, Table
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicInfo, TopicSpec
from workers import same_topics, topic_identities
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


def writing(name: str) -> App:
    app = App("other", partitions=2)
    ins, out = app.topic("ins", key=str, value=int), app.topic(name, key=str, value=int, alias="out")

    @app.processor(ins, out)
    def copy(record: Record[str, int], out: Sink[str, int]) -> None:
        out.send(record.key, 666)

    return app


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (CHANGES, "a changelog"),
        ("bank-by-name-repartition", "a re-key topic"),
        ("bank-orchestrator", "the topic of facts"),
    ],
)
async def test_what_is_another_applications_own_is_not_written(name: str, what: str) -> None:
    """The other application's table had the rows that this one sent, and no line was printed."""
    log = MemoryLog()
    app = bank()
    payments = app.topics["payments"]
    names = app.table("names", key=str, value=int, default=int)

    @app.processor(payments.rekey("by-name", key=str, by=lambda record: record.key), names)
    def count(payment: Record[str, int], names: Table[str, int]) -> None:
        names[payment.key] += 1

    await prepare(log, writing("bank-news-changelog"))  # no application has such a topic
    await prepare(log, app)
    with pytest.raises(AppRefused, match=f"topic {name} is {what} of application 'bank', which it alone may write"):
        await prepare(log, writing(name))
    await prepare(log, app)  # what it writes itself is its own


class Late(MemoryLog):
    """Its brokers do not all know a topic at one moment: so many looks do not find it."""

    hidden = 0

    async def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        self.hidden, hides = max(0, self.hidden - 1), self.hidden > 0
        return await super().topics([name for name in names if name != CHANGES or not hides])


async def test_a_broker_that_hears_of_a_topic_later_ends_no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet has made the changelog; each instance and worker asks a broker of its own, at its start and after a crash."""
    monkeypatch.setattr(same_topics, "LOOK_S", 0.0)
    log = Late()
    before = await prepare(log, bank())
    await topic_identities.keep(log, before)
    for start in (prepare, topic_identities.check):
        log.hidden = 3
        await start(log, bank())
        assert log.hidden == 0
    log.hidden = 1_000
    with pytest.raises(AppRefused, match=f"changelog {CHANGES} was deleted since the app ran"):
        await prepare(log, bank())


async def test_what_is_accepted_is_kept_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_topics, "LOOK_S", 0.0)
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


async def test_a_topic_that_a_process_made_which_starts_beside_this_one_was_not_deleted() -> None:
    """Of four instances of a new app that began at one moment one was refused: it had looked for topics before another made them."""
    log, app = MemoryLog(), App("bank", partitions=1)
    payments, balances = app.topic("payments", key=str, value=int), app.table("balances", key=str, value=int)
    app.processor(payments, balances)(lambda payment, balances: None)
    before: dict[str, TopicInfo] = {}
    prepared = await prepare(log, app)
    await topic_identities.keep(log, prepared)
    await same_topics.refuse_others(log, prepared.topology, before)
    await log.put_metadata("bank", TOPIC_IDS, "payments", b"another")
    with pytest.raises(AppRefused, match="topic payments was deleted and created again"):
        await same_topics.refuse_others(log, prepared.topology, before)
