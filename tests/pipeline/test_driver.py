"""The Driver: every partition, re-keys followed at once, no clock, real TaskProcess; and resources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App, PipelineError, ProcessorFailed, Record, Sink, Table
from orchestrator.testing import Driver
from pipeline.definitions.definition import TableDef, Topic
from pipeline.errors import CodecError, DefinitionError
from pipeline.values.partitioner import partition_of


class Flight(msgspec.Struct):
    tail: str | None
    miles: int


def flights_app() -> tuple[App, Topic[str, Flight], Topic[str, Flight], TableDef[str, int]]:
    app = App("fly", partitions=4)
    flights = app.topic("flights", key=str, value=Flight)
    by_aircraft = flights.rekey("by-aircraft", key=str, by=lambda record: record.value.tail)
    miles = app.table("miles", key=str, value=int, default=int)

    @app.processor(by_aircraft, miles)
    def add(flight: Record[str, Flight], miles: Table[str, int]) -> None:
        miles[flight.key] += flight.value.miles

    return app, flights, by_aircraft, miles


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.sampled_from(["N1", "N2", "N3"]), st.integers(0, 9))))
def test_rekeys_are_followed_and_none_drops(flown: list[tuple[str, str | None, int]]) -> None:
    app, flights, by_aircraft, miles = flights_app()
    expected: dict[str, int] = {}
    with Driver(app) as driver:
        for origin, tail, distance in flown:
            driver.send(flights, origin, Flight(tail, distance), headers=[("h", b"1")])
            if tail is not None:
                expected[tail] = expected.get(tail, 0) + distance
        assert driver.table(miles) == expected
        moved = driver.records(by_aircraft)
        assert [record.key for record in moved] == [tail for _, tail, _ in flown if tail is not None]
        sent = [record for record in driver.records(flights) if record.value.tail is not None]
        assert [(r.timestamp_ms, r.headers, r.value) for r in moved] == [
            (r.timestamp_ms, r.headers, r.value) for r in sent
        ]


def test_a_rekey_keeps_the_bytes_of_the_value() -> None:
    """Fields that this version does not know are not lost on the way."""
    app, flights, by_aircraft, _ = flights_app()
    with Driver(app) as driver:
        driver.send_bytes(flights, b"k", b'{"tail": "N1", "miles": 2, "pilot": "Ada"}')
        [(_, raw)] = driver._records[by_aircraft.topic]
        assert raw.value == b'{"tail": "N1", "miles": 2, "pilot": "Ada"}'


def test_a_rekey_to_another_type_and_one_that_fails() -> None:
    app = App("x", partitions=3)
    source = app.topic("in", key=str, value=str)
    dead = app.topic("dead", key=bytes, value=bytes)
    numbers = source.rekey("numbers", key=int, by=lambda record: int(record.value), on_error=dead)
    seen: list[tuple[int, str]] = []

    @app.processor(numbers)
    def look(record: Record[int, str]) -> None:
        seen.append((record.key, record.value))

    with Driver(app) as driver:
        driver.send(source, "k", "7")
        driver.send(source, "k", "seven")
        assert seen == [(7, "7")]
        assert driver.items(dead) == [(b"k", b"seven")]
        assert dict(driver.records(dead)[0].headers)["error-processor"] == b"rekey numbers"


def test_rekeys_can_follow_each_other() -> None:
    app = App("x", partitions=3)
    source = app.topic("in", key=str, value=str)
    first = source.rekey("first", key=str, by=lambda record: record.value[0])
    second = first.rekey("second", key=int, by=lambda record: len(record.value))
    seen: list[Any] = []

    @app.processor(second)
    def look(record: Record[int, str]) -> None:
        seen.append((record.topic, record.key, record.value))

    with Driver(app) as driver:
        driver.send(source, "k", "abc")
    assert seen == [("x-second-repartition", 3, "abc")]
    assert app.topology().tasks() == [f"{n}_{p}" for n in range(3) for p in range(3)]


def test_partitions_timestamps_and_offsets() -> None:
    app, flights, _, _ = flights_app()
    with Driver(app) as driver:
        for key, time in (("a", None), ("b", None), ("a", 50), ("c", None), ("a", 7)):
            driver.send(flights, key, Flight(None, 1), timestamp_ms=time)
        for _ in range(4):
            driver.send(flights, None, Flight(None, 1))
        found = driver.records(flights)
    assert [record.timestamp_ms for record in found] == [0, 1, 50, 51, 7, 52, 53, 54, 55]
    assert [record.partition for record in found[:5]] == [partition_of(k, 4) for k in (b"a", b"b", b"a", b"c", b"a")]
    assert [record.partition for record in found[5:]] == [0, 1, 2, 3]
    last: dict[int, int] = {}
    for record in found:
        assert record.offset == last.get(record.partition, -1) + 1
        last[record.partition] = record.offset


def test_partitions_can_be_given() -> None:
    app, flights, _, _ = flights_app()
    with Driver(app, partitions=2) as driver:
        for n in range(20):
            driver.send(flights, str(n), Flight(None, 1))
        assert {record.partition for record in driver.records(flights)} == {0, 1}


def test_together_takes_the_order_of_a_task() -> None:
    app = App("x")
    first, second = app.topic("b", key=str, value=str), app.topic("a", key=str, value=str)
    seen: list[str] = []

    @app.processor([first, second])
    def look(record: Record[str, str]) -> None:
        seen.append(record.value)

    with Driver(app) as driver, driver.together():
        driver.send(first, "k", "late", timestamp_ms=9)
        driver.send(second, "k", "early", timestamp_ms=3)
        driver.send(first, "k", "first topic, same time", timestamp_ms=9)
        driver.send(second, "k", "tie goes by name", timestamp_ms=9)
    assert seen == ["early", "tie goes by name", "late", "first topic, same time"]


@pytest.mark.parametrize("at", [-1, 1.5, True, None, 1 << 63])
def test_a_time_is_whole_milliseconds(at: Any) -> None:
    app = App("x")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)

    @app.processor(source, out)
    def pass_on(record: Any, out: Any) -> None:
        out.send(record.key, record.value, timestamp_ms=at)

    with Driver(app) as driver:
        with pytest.raises(CodecError, match=f"^advance: {at} is no time in milliseconds"):
            driver.advance(at)
        if at is not None:
            with pytest.raises(ProcessorFailed, match=f"timestamp_ms for topic 'out': {at} is no time"):
                driver.send(source, "a", 1)


def test_a_failed_record_leaves_what_was_there() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=int)
    table = app.table("t", key=str, value=int, default=int)
    out = app.topic("out", key=str, value=int)

    @app.processor(source, table, out)
    def add(record: Record[str, int], t: Table[str, int], out: Sink[str, int]) -> None:
        t[record.key] += record.value
        out.send(record.key, t[record.key])
        if record.value < 0:
            raise ValueError("negative")

    with Driver(app) as driver:
        driver.send(source, "a", 1)
        with pytest.raises(ProcessorFailed, match="negative"):
            driver.send(source, "a", -1)
        driver.send(source, "a", 2)
        assert driver.table(table) == {"a": 3}
        assert driver.items(out) == [("a", 1), ("a", 3)]


def test_other_apps_and_use_outside_the_block() -> None:
    app, flights, _, _ = flights_app()
    _, foreign, _, foreign_table = flights_app()
    with Driver(app) as driver:
        for use in (
            lambda: driver.send(foreign, "k", Flight(None, 1)),
            lambda: driver.items(foreign),
            lambda: driver.table(foreign_table),
        ):
            with pytest.raises(PipelineError, match="belongs to app"):
                use()
    with pytest.raises(PipelineError, match="inside its block"):
        Driver(app).send(flights, "k", Flight(None, 1))


# resources


def resource_app(log: list[str]) -> App:
    app = App("x", partitions=3)
    source = app.topic("in", key=str, value=str)
    out = app.topic("out", key=str, value=str)

    @app.resource
    def model() -> Iterator[dict[str, str]]:
        log.append("open model")
        yield {"a": "A"}
        log.append("close model")

    @app.resource
    async def client() -> AsyncIterator[str]:
        log.append("open client")
        yield "client"
        log.append("close client")

    @app.resource
    def plain() -> int:
        return 5

    @app.resource
    async def awaited() -> int:
        return 6

    @app.processor(source, model, client, plain, awaited, out)
    async def ask(
        record: Record[str, str], model: dict[str, str], client: str, plain: int, awaited: int, out: Sink[str, str]
    ) -> None:
        out.send(record.key, f"{model.get(record.value)} {client} {plain} {awaited}")

    return app


def test_resources_are_opened_once_and_closed_in_reverse() -> None:
    log: list[str] = []
    app = resource_app(log)
    with Driver(app) as driver:
        for key in "abcdef":
            driver.send(app.topics["in"], key, "a")
        assert driver.items(app.topics["out"]) == [(key, "A client 5 6") for key in "abcdef"]
    assert log == ["open model", "open client", "close client", "close model"]


def test_a_test_can_give_resources() -> None:
    log: list[str] = []
    app = resource_app(log)
    with Driver(app, resources={"model": {"a": "fake"}}) as driver:
        driver.send(app.topics["in"], "k", "a")
        assert driver.items(app.topics["out"]) == [("k", "fake client 5 6")]
    assert log == ["open client", "close client"]
    with pytest.raises(PipelineError, match="no resource modell; it has model, client"):
        Driver(app, resources={"modell": 1})


def test_what_was_opened_is_closed_where_a_later_one_fails() -> None:
    log: list[str] = []
    app = resource_app(log)

    @app.resource
    def broken() -> int:
        raise ConnectionError("nobody there")

    with pytest.raises(ConnectionError, match="nobody there"), Driver(app):
        pass
    assert log == ["open model", "open client", "close client", "close model"]


@pytest.mark.parametrize("times", [0, 2])
def test_a_resource_yields_once(times: int) -> None:
    app = resource_app([])

    @app.resource
    def odd() -> Iterator[int]:
        yield from range(times)

    with pytest.raises(PipelineError, match="resource 'odd' yielded"), Driver(app):
        pass


async def test_inside_a_running_loop_it_says_what_to_do() -> None:
    app = resource_app([])
    with pytest.raises(PipelineError, match="async with Driver"), Driver(app):
        pass


def test_without_key_a_record_stays_in_the_number_of_its_task() -> None:
    app = App("x", partitions=3)
    source = app.topic("in", key=str, value=str)
    out = app.topic("out", key=str, value=str, partitions=2)

    @app.processor(source, out)
    def send(record: Record[str, str], out: Sink[str, str]) -> None:
        out.send(None, str(record.partition))

    with Driver(app) as driver:
        for key in "abcdefgh":
            driver.send(source, key, "")
        assert {(record.value, record.partition) for record in driver.records(out)} == {("0", 0), ("1", 1), ("2", 0)}


@pytest.mark.parametrize("options", [{}, {"batch": True}, {"concurrency": 2}])
def test_what_lies_behind_a_record_that_stops_is_not_lost(options: dict[str, Any]) -> None:
    """A halted task has it when it goes on; here it goes with what is sent next."""
    app = App("x", partitions=1)
    numbers, sums = app.topic("numbers", key=str, value=int), app.table("sums", key=str, value=int, default=int)

    def one(number: Any, sums: Any) -> None:
        sums[number.key] += 6 // number.value

    def many(batch: Any, sums: Any) -> None:
        for number in batch:
            one(number, sums)

    async def alone(number: Any, sums: Any) -> None:
        one(number, sums)

    app.processor(numbers, sums, **options)(many if "batch" in options else alone if options else one)
    with Driver(app) as driver:
        with pytest.raises(ProcessorFailed, match="numbers-0@1"), driver.together():
            for value in (1, 0, 2, 3):
                driver.send(numbers, "ann", value)
        assert driver.table(sums) == {"ann": 6}
        driver.send(numbers, "ann", 6)
        assert driver.table(sums) == {"ann": 6 + 3 + 2 + 1}


def test_what_is_no_app_topic_or_table_is_named() -> None:
    """`table(topic)` was an empty table: a test that expects nothing there held whatever the app did."""
    app = App("x")
    numbers = app.topic("numbers", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int)

    @app.processor(numbers, sums)
    def add(record: Record[str, int], sums: Table[str, int]) -> None:
        sums[record.key] += record.value

    with pytest.raises(DefinitionError, match=r"Driver\(5\): that is no app"):
        Driver(5)  # type: ignore[arg-type]
    with Driver(app) as driver:
        for call in (driver.items, driver.records, lambda it: driver.send(it, "a", 1)):
            for wrong, shown in ((5, "5"), (sums, "table 'sums'")):
                with pytest.raises(DefinitionError, match=f"app 'x': {shown} is no topic; give one of app.topic"):
                    call(wrong)  # type: ignore[operator]
        for wrong, shown in ((None, "None"), (numbers, "topic 'numbers'")):
            with pytest.raises(DefinitionError, match=f"app 'x': {shown} is no table"):
                driver.table(wrong)  # type: ignore[call-overload]
        with pytest.raises(CodecError, match="headers for topic 'numbers': 5 is no list of pairs"):
            driver.send(numbers, "a", 1, headers=5)  # type: ignore[arg-type]
        assert driver.items(numbers) == []


@pytest.mark.parametrize("options", [{}, {"batch": True}, {"concurrency": 2}])
async def test_what_a_cancelled_send_has_not_completed_goes_with_what_is_sent_next(options: dict[str, Any]) -> None:
    """It is in its topic; what it did before its call waits is there once."""
    app = App("x", partitions=1)
    numbers, sums = app.topic("numbers", key=str, value=int), app.table("sums", key=str, value=int, default=int)
    called, goes_on = asyncio.Event(), asyncio.Event()

    async def one(number: Any, sums: Any) -> None:
        sums[number.key] += number.value
        if number.value == 20:
            called.set()
            await goes_on.wait()

    async def many(batch: Any, sums: Any) -> None:
        for number in batch:
            await one(number, sums)

    app.processor(numbers, sums, **options)(many if "batch" in options else one)
    async with Driver(app) as driver:

        async def send() -> None:
            async with driver.together():
                for value in (1, 20, 300):
                    await driver.send(numbers, "a", value)

        sending = asyncio.ensure_future(send())
        await called.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        goes_on.set()
        await driver.send(numbers, "a", 4_000)
        assert driver.table(sums) == {"a": 4_321}
        assert [value for _, value in driver.items(numbers)] == [1, 20, 300, 4_000]


def test_what_is_no_error_of_a_processor_takes_its_record_along() -> None:
    """As `pytest.fail` in one: each later send called that record again, and came no further."""

    class Ended(BaseException):
        pass

    app, called = App("ended", partitions=1), list[int]()
    numbers = app.topic("numbers", key=str, value=int)

    @app.processor(numbers)
    def end(number: Record[str, int]) -> None:
        called.append(number.value)
        if number.value == 1:
            raise Ended

    with Driver(app) as driver:
        driver.send(numbers, "a", 0)
        with pytest.raises(Ended):
            driver.send(numbers, "a", 1)
        driver.send(numbers, "a", 2)
    assert called == [0, 1, 2]
