"""Event time out of the payload, and records that are too far ahead."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from orchestrator import App, ProcessorFailed, Tumbling
from orchestrator.testing import Driver
from pipeline.errors import DefinitionError


class Beat(msgspec.Struct):
    at: int


def app_of(**options: Any) -> tuple[App, Any, Any, Any, Any, list[Any]]:
    app = App("x")
    beats = app.topic("beats", key=str, value=Beat, timestamp=lambda beat: beat.at, max_ahead=timedelta(seconds=1))
    out, dead = app.topic("out", key=str, value=Beat), app.topic("dead", key=bytes, value=bytes)
    sums = app.table(
        "sums", key=str, value=int, default=int, window=Tumbling(milliseconds=100), retain=timedelta(days=1)
    )
    if options.get("on_error") == "dead":
        options["on_error"] = dead
    seen: list[Any] = []

    @app.processor(beats, sums, out, **options)
    def beat(beat: Any, sums: Any, out: Any) -> None:
        seen.append(beat.timestamp_ms)
        sums[beat.key] += 1
        out.send(beat.key, beat.value)

    return app, beats, out, dead, sums, seen


def test_records_are_taken_in_the_order_of_their_own_times() -> None:
    app, beats, out, _, sums, seen = app_of()
    plain = app.topic("plain", key=str, value=int)

    @app.processor(plain, sums)
    def other(record: Any, sums: Any) -> None:
        seen.append(record.timestamp_ms)

    with Driver(app) as d:
        with d.together():
            d.send(beats, "ann", Beat(50), timestamp_ms=900)
            d.send(plain, "ann", 1, timestamp_ms=40)
            d.send(beats, "ann", Beat(150), timestamp_ms=7)
        assert seen == [40, 50, 150]
        assert d.table(sums) == {("ann", (0, 100)): 1, ("ann", (100, 200)): 1}
        assert [record.timestamp_ms for record in d.records(out)] == [50, 150]


def test_a_time_in_nanoseconds_is_too_far_ahead() -> None:
    app, beats, _, dead, _, seen = app_of(on_error="dead")
    with Driver(app) as d:
        for at in (1_700_000_000_000, 1_700_000_000_000_000_000, 1_700_000_000_001):
            d.send(beats, "ann", Beat(at))
        assert seen == [1_700_000_000_000, 1_700_000_000_001]
        headers = dict(d.records(dead)[0].headers)
        assert headers["error-message"].startswith(
            b"its time 1700000000000000000 is 1699998300000000000 ms ahead of stream time 1700000000000, and max_ahead=0:00:01;"
        )


def test_too_far_ahead_goes_by_on_error_and_moves_no_time() -> None:
    app, beats, _, dead, sums, seen = app_of(on_error="dead")
    with Driver(app) as d:
        d.send(beats, "ann", Beat(10))
        d.send(beats, "ann", Beat(1_011))
        d.send(beats, "ann", Beat(1_010))  # just so far
        d.send(beats, "ann", Beat(1_005))
        assert seen == [10, 1_010, 1_005] and d.late(sums) == 0
        (letter,) = d.records(dead)
        assert letter.timestamp_ms == 1_011
        headers = {name: value.decode() for name, value in letter.headers}
        assert headers["error-type"] == "TooFarAhead" and "max_ahead=0:00:01" in headers["error-message"]


def test_stop_is_the_default() -> None:
    app, beats, *_ = app_of()
    with Driver(app) as d:
        d.send(beats, "ann", Beat(10))
        with pytest.raises(ProcessorFailed, match="TooFarAhead: its time 5000 is"):
            d.send(beats, "ann", Beat(5_000))


def test_too_far_ahead_for_a_table_goes_by_the_policy_of_who_reads_it() -> None:
    for on_error in ("stop", "dead"):
        app = App("x")
        beats = app.topic("beats", key=str, value=int)
        rates = app.topic("rates", key=str, value=int, max_ahead=timedelta(seconds=1))
        dead = app.topic("dead", key=bytes, value=bytes)
        table = app.table_of(rates, alias="table")
        app.processor(beats, table, on_error=dead if on_error == "dead" else on_error)(lambda beat, table: None)
        with Driver(app) as d:
            d.send(rates, "ann", 1, timestamp_ms=10)
            if on_error == "stop":
                with pytest.raises(ProcessorFailed, match="TooFarAhead: its time 5000 is"):
                    d.send(rates, "ann", 2, timestamp_ms=5_000)
                continue
            d.send(rates, "ann", 2, timestamp_ms=5_000)
            d.send(rates, "bob", 3, timestamp_ms=1_000)
            assert d.table(table) == {"ann": 1, "bob": 3}
            assert [letter.timestamp_ms for letter in d.records(dead)] == [5_000]


@pytest.mark.parametrize("at", [-5, 1 << 63])
def test_a_value_that_gives_no_time(at: int) -> None:
    app, beats, _, _, _, seen = app_of(on_error="skip")
    with Driver(app) as d:
        if at < 0:
            d.send(beats, "ann", Beat(at))
        else:
            d.send_bytes(beats, b"ann", b'{"at": "soon"}')
        d.send(beats, "ann", Beat(10))
    assert seen == [10]


@pytest.mark.parametrize("ends", [SystemExit, asyncio.CancelledError])
def test_a_function_of_the_time_that_ends_so_is_left_to_on_error(ends: type[BaseException]) -> None:
    """It is called where records are fetched: the worker ended with it, again and again, and its record was not found."""

    def at(value: int) -> int:
        if value == 7:
            raise ends
        return value

    app, seen = App("x", partitions=1), list[int]()
    source = app.topic("in", key=str, value=int, timestamp=at)
    app.processor(source, on_error="skip")(lambda record: seen.append(record.value))
    with Driver(app) as d:
        for value in (5, 7, 9):
            d.send(source, "ann", value)
    assert seen == [5, 9]


def test_a_value_that_gives_no_time_is_in_no_table() -> None:
    for on_error in ("stop", "skip"):
        app = App("x")
        beats, own = app.topic("beats", key=str, value=int), app.topic("own", key=str, value=Beat, timestamp=at_of)
        table = app.table_of(own, alias="table")
        app.processor(beats, table, on_error=on_error)(lambda beat, table: None)  # type: ignore[arg-type]
        with Driver(app) as d:
            d.send(own, "ann", Beat(5))
            if on_error == "stop":
                with pytest.raises(ProcessorFailed, match=r"timestamp= gave -7, which is no time"):
                    d.send(own, "ann", Beat(-7))
            else:
                d.send(own, "ann", Beat(-7))
            assert d.table(table) == {"ann": Beat(5)}


def at_of(beat: Beat) -> int:
    return beat.at


def test_tables_of_a_topic_have_the_times_of_its_values() -> None:
    app, seen = App("x"), list[int]()
    beats = app.topic("beats", key=str, value=int)
    declared = [app.topic(name, key=str, value=Beat, timestamp=lambda beat: beat.at) for name in ("own", "shared")]
    own, shared = app.table_of(declared[0]), app.global_table(declared[1])

    @app.processor(beats, own, shared)
    def look(beat: Any, own: Any, shared: Any) -> None:
        seen.extend(table.timestamp_ms("ann") for table in (own, shared))

    with Driver(app) as d:
        for topic in declared:
            d.send(topic, "ann", Beat(50), timestamp_ms=7)
        d.send(beats, "ann", 1, timestamp_ms=60)
    assert seen == [50, 50]


def test_what_cannot_be() -> None:
    app = App("x")
    with pytest.raises(DefinitionError, match="timestamp=3 is not a function"):
        app.topic("a", key=str, value=int, timestamp=3)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match=r"max_ahead=.* is shorter than a millisecond"):
        app.topic("b", key=str, value=int, max_ahead=timedelta(0))
    limited = app.topic("c", key=str, value=int, max_ahead=timedelta(1))
    app.processor(limited, batch=True)(lambda records: None)
    with pytest.raises(DefinitionError, match="batch=True, but the times of 'c' are limited"):
        app.topology()
    app = App("y")
    table = app.table_of(app.topic("c", key=str, value=int, max_ahead=timedelta(1)))
    app.processor(app.topic("d", key=str, value=int), table, batch=True)(lambda records, c: None)
    with pytest.raises(DefinitionError, match="batch=True, but the times of 'c' are limited"):
        app.topology()
    app = App("z")
    everywhere = app.global_table(app.topic("c", key=str, value=int, max_ahead=timedelta(1)))
    app.processor(app.topic("d", key=str, value=int), everywhere)(lambda record, c: None)
    with pytest.raises(DefinitionError, match="topic 'c' has max_ahead=, but it is a global table alone"):
        app.topology()
    app.processor(app.topics["c"])(lambda record: None)  # whose tasks go by it
    app.topology()
