"""A seed that several processes write on a real broker: attempts at once, one after the other, and such that come too late."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from state.errors import LeaseLost, LogUnusable
from state.log.batches import build
from state.log.kafka import broker, producer
from state.log.kafka.log import KafkaLog
from state.log.kafka.seeding import SeedTooLong
from state.log.protocol import NewRecord, Partition, Spread, Ticket
from tests import brokers
from tests.contracts.logs import records, until, values
from tests.kafka.place import APP, CHANGES, IN, OUT, Place
from workers.commands.consume import has_records

pytestmark = [pytest.mark.kafka]
PARTS, EACH = 40, 3
WHOLE: list[str | None] = [f"{part}.{number}" for part in range(PARTS) for number in range(EACH)]


def parts(fail_at: int = PARTS) -> Callable[[], Iterator[Sequence[NewRecord]]]:
    """Many more than the broker remembers of a producer's batches, which is five."""

    def made() -> Iterator[Sequence[NewRecord]]:
        for part in range(PARTS):
            if part == fail_at:
                raise OSError("the executor is gone")
            texts = [f"{part}.{number}".encode() for number in range(EACH)]
            yield [NewRecord(text, text, 1_000) for text in texts]  # a key each: none is compacted away

    return made


async def attempt(ticket: Ticket, partition: Partition = OUT, fail_at: int = PARTS) -> int:
    """As in another process."""
    there: Ticket = pickle.loads(pickle.dumps(ticket))
    return await there.write(partition, parts(fail_at))


async def seeded(log: KafkaLog, write: Callable[[Ticket], Awaitable[None]], position: int = 5) -> bool:
    lease = await log.lease(APP) or await log.acquire(APP, "one", "a:1", None)
    assert lease is not None
    return await log.seed_positions(lease, {IN: position}, {}, spread=Spread([OUT, CHANGES], write))


async def test_attempts_at_once_write_each_record_once(place: Place) -> None:
    log = await place.topics()

    async def write(ticket: Ticket) -> None:
        attempts = [attempt(ticket, one) for one in (OUT, OUT, OUT, CHANGES)]
        assert await asyncio.gather(*attempts) == [PARTS * EACH] * 4

    assert await seeded(log, write)
    assert await values(log, OUT) == WHOLE == await values(log, CHANGES)
    assert await log.positions(APP, [IN]) == {IN: 5}


@pytest.mark.parametrize("fail_at", [1, PARTS // 2, PARTS - 1])
async def test_an_attempt_goes_on_where_the_one_before_failed(place: Place, fail_at: int) -> None:
    log = await place.topics()

    async def write(ticket: Ticket) -> None:
        with pytest.raises(OSError, match="executor"):
            await attempt(ticket, fail_at=fail_at)
        assert await attempt(ticket) == PARTS * EACH

    assert await seeded(log, write)
    assert await values(log, OUT) == WHOLE


async def test_what_an_attempt_gives_otherwise_than_the_one_before_is_refused(place: Place) -> None:
    """Fewer records, and the last of them beyond what the broker remembers: nobody could say whether they are the same."""
    log = await place.topics()

    async def write(ticket: Ticket) -> None:
        await attempt(ticket)
        await ticket.write(OUT, lambda: [records("other"), records("still other", "and one more")])

    with pytest.raises(LogUnusable, match="OUT_OF_ORDER_SEQUENCE"):
        await seeded(log, write)
    assert await values(log, OUT) == []


async def test_an_attempt_that_comes_too_late_writes_nothing(place: Place) -> None:
    """Behind an abort, within the next seed, and behind the commit."""
    log = await place.topics()
    tickets: list[Ticket] = []

    async def failing(ticket: Ticket) -> None:
        tickets.append(ticket)
        with pytest.raises(OSError, match="executor"):
            await attempt(ticket, fail_at=3)
        raise OSError("the job failed")

    with pytest.raises(OSError, match="the job failed"):
        await seeded(log, failing)
    with pytest.raises(LogUnusable, match="is over"):
        await attempt(tickets[0])
    assert await values(log, OUT) == []

    async def write(ticket: Ticket) -> None:
        tickets.append(ticket)
        with pytest.raises(LogUnusable, match="is over"):
            await attempt(tickets[0])
        await attempt(ticket)
        with pytest.raises(LogUnusable, match="is over"):
            await attempt(tickets[0])

    assert await seeded(log, write)
    async with asyncio.timeout(30):  # a commit is answered before its markers are written: an abort's and a commit's
        while (ends := await log.ends([OUT, CHANGES], settled=True))[CHANGES] < 2:
            pass
    with pytest.raises(LogUnusable, match="is over"):
        await attempt(tickets[1])
    assert await values(log, OUT) == WHOLE
    assert await log.ends([OUT, CHANGES], settled=True) == ends


async def test_an_attempt_is_refused_as_well_where_brokers_do_not_look_whose_transaction_is_open(
    tmp_path: Path,
) -> None:
    """They may be set so; then a record behind an abort would lie there as if of a transaction that nobody ends."""
    brokers.shared()  # skips the test where none can be had
    unchecked = {"transaction.partition.verification.enable": "false"}
    made = broker.prepare(tmp_path / "broker", settings=unchecked, version=brokers.VERSION)
    made.launch()
    place = Place(port=made.port)
    try:
        log = await place.topics()
        tickets: list[Ticket] = []

        async def failing(ticket: Ticket) -> None:
            tickets.append(ticket)
            await attempt(ticket, fail_at=3)

        with pytest.raises(OSError, match="executor"):
            await seeded(log, failing)
        with pytest.raises(LogUnusable, match="is over"):
            await attempt(tickets[0])
        assert await values(log, OUT) == []
    finally:
        await place.close()
        made.stop(kill=True)


async def test_attempts_of_a_driver_that_lost_the_lease_are_refused(place: Place) -> None:
    log, other = await place.topics(), await place.open()

    async def write(ticket: Ticket) -> None:
        with pytest.raises(OSError, match="executor"):
            await attempt(ticket, fail_at=3)
        new = await other.acquire(APP, "two", "a:2", await other.lease(APP))
        assert new is not None
        with pytest.raises(LogUnusable, match="is over"):
            await attempt(ticket)

    with pytest.raises(LeaseLost, match="two"):
        await seeded(log, write)
    assert await values(log, OUT) == []


async def test_what_takes_longer_than_brokers_let_it_says_so(place: Place) -> None:
    """Other processes write, and are refused: that is why, and nothing else. What they have written is no record."""
    log = await place.topics()

    async def write(ticket: Ticket) -> None:
        await attempt(ticket)
        assert (await log.written([OUT]))[OUT] > (await log.ends([OUT]))[OUT]

        async def is_aborted() -> bool:
            return await log.ends([OUT]) == await log.written([OUT])

        await until("the broker to abort it", is_aborted, 60.0)
        await attempt(ticket, CHANGES)

    log.seeds.most_s = 0.5
    with pytest.raises(SeedTooLong, match=r"they allow 0\.5 s .* transaction\.max\.timeout\.ms"):
        await seeded(log, write)
    assert (await log.ends([OUT]))[OUT] > 0 and not await has_records(log, OUT)
    await log.append({OUT: records("one")})
    assert await has_records(log, OUT)


async def test_a_sequence_begins_anew_behind_its_largest_number(place: Place) -> None:
    """A worker that writes 1,000 records a second to a partition is there after 25 days."""
    log = await place.topics()
    one = log._cluster.producer(None, 10.0)
    await one.initialise()
    one._sequences[OUT] = producer._SEQUENCES - 3
    for number in range(4):
        await one.produce({OUT: build(records(f"{number}", f"{number}"))})
    assert await values(log, OUT) == [f"{number}" for number in range(4) for _ in range(2)]
