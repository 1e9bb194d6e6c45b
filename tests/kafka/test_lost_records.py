"""Brokers that have lost what a producer wrote refuse what it writes next: no end of a worker, and a line says what is lost.

A gap in the numbers that a producer gives its batches is what such brokers see; `test_elections.py` loses records by an election.
"""

from __future__ import annotations

import logging

import pytest

from state.errors import Fenced, RecordsLost
from state.log.group_store import OwnerRecord
from state.log.kafka.appender import Appender
from state.log.kafka.log import KafkaLog
from state.log.kafka.producer import Producer
from state.log.protocol import Guarantee, Partition
from tests.contracts.logs import records, values
from tests.kafka.place import APP, CHANGES, IN, OUT, Place, count

pytestmark = pytest.mark.kafka


def lose(producer: Producer | None, *partitions: Partition) -> None:
    """As if brokers had lost the latest that it wrote to these."""
    assert producer is not None
    for one in partitions:
        producer._sequences[one] += 1


async def owned(log: KafkaLog, *writers: str) -> None:
    lease = await log.acquire(APP, "c", "a:1", await log.lease(APP))
    assert lease is not None
    for epoch, writer in enumerate(writers, 1):
        await log.open_writer(APP, writer)
        await log.record_owners(lease, [OwnerRecord("0_0", epoch, "m", writer, lease.term)])


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
async def test_a_worker_gives_its_id_up_and_goes_on_under_another(place: Place, guarantee: Guarantee) -> None:
    log = await place.topics()
    await owned(log, "w")
    await log.commit(APP, "w", [count(1)], guarantee=guarantee)
    writers, key = log._writers, (APP, "w")
    lose(writers._opened[key] if guarantee == "exactly-once" else writers._unfenced[key], OUT, CHANGES)
    with pytest.raises(RecordsLost) as caught:
        await log.commit(APP, "w", [count(2)], guarantee=guarantee)
    text = str(caught.value)
    assert f"the brokers of {OUT}, {CHANGES} lost records of transactional id w (an unclean election" in text
    assert f"what {OUT} lost was committed, and nothing writes it again" in text
    assert f"tables are restored from what {CHANGES} kept" in text
    assert await log.positions(APP, [IN]) == {IN: 1}

    with pytest.raises(Fenced, match="was fenced"):
        await log.commit(APP, "w", [count(2)], guarantee=guarantee)
    await owned(log, "w", "next")
    await log.commit(APP, "next", [count(2, 2)], guarantee=guarantee)
    assert await values(log, OUT) == await values(log, CHANGES) == ["1", "2"]
    assert await log.positions(APP, [IN]) == {IN: 2}


async def test_who_produces_goes_on_with_another_producer(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    log = await place.topics()
    appender = Appender(log._cluster)
    both = {OUT: records("1"), IN: records("1")}
    await appender.append({OUT: records("0")})
    await appender.append(both)
    lose(appender._idempotent, OUT)
    lose(appender._transactional, OUT, IN)
    with caplog.at_level(logging.WARNING):
        await appender.append({OUT: records("2")})
        await appender.append({OUT: records("3"), IN: records("3")})
    assert await values(log, OUT) == ["0", "1", "2", "3"]
    assert await values(log, IN) == ["1", "3"]
    assert [text.split(" (")[0] for text in caplog.messages] == [
        f"the brokers of {OUT} lost records that were written there before",
        f"the brokers of {IN}, {OUT} lost records that were written there before",
    ]
