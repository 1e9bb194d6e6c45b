"""What cannot be meant is refused when the module is imported, by name and with the way out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from orchestrator import App, Hopping, PipelineError, Session, Sliding, Tumbling
from pipeline.errors import DefinitionError, SchemaRefused, TopologyError

HOUR = timedelta(hours=1)


def table(**options: Any) -> Any:
    return App("bank").table("sums", key=str, value=int, **options)


def add(earlier: int, later: int) -> int:
    return earlier + later


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Tumbling(hours=0), "size=0:00:00 is shorter than a millisecond"),
        (lambda: Tumbling(), "shorter than a millisecond"),
        (lambda: Tumbling(hours=-1), "shorter than a millisecond"),
        (lambda: Tumbling(hours=float("nan")), "is no size"),
        (lambda: Tumbling(days=10**12), "is no size"),
        (lambda: Tumbling(seconds=True), "seconds=True is not a number"),
        (lambda: Tumbling(hours=1, seconds=False), "seconds=False is not a number"),
        (lambda: Hopping(minutes=True, every=HOUR), "minutes=True is not a number"),
        (lambda: Sliding(weeks="1"), "weeks='1' is not a number"),  # type: ignore[arg-type]
        (lambda: Sliding(HOUR, days=()), r"days=\(\) is not a number"),  # type: ignore[arg-type]
        (lambda: Tumbling(HOUR, hours=1), "give its size once"),
        (lambda: Tumbling(timedelta(microseconds=1500)), "not a whole number of milliseconds"),
        (lambda: Tumbling(days=1, zone="Europe/Nowhere"), "not the name of a time zone"),
        (lambda: Tumbling(hours=1, zone="Europe/Paris"), "is for whole days"),
        (lambda: Tumbling(hours=1, offset=HOUR), "offset=1:00:00 is not shorter than a window"),
        (lambda: Tumbling(hours=1, offset=-HOUR), "it is negative"),
        (lambda: Hopping(hours=0, every=HOUR), "shorter than a millisecond"),
        (lambda: Hopping(hours=1, every=timedelta(0)), "every=0:00:00 is shorter than a millisecond"),
        (lambda: Hopping(hours=1, every=2 * HOUR), "longer than a window"),
        (lambda: Session(gap=timedelta(0), merge=add), "gap=0:00:00 is shorter than a millisecond"),
        (lambda: Session(gap=-HOUR, merge=add), "shorter than a millisecond"),
        (lambda: Session(gap=3, merge=add), "not a timedelta"),  # type: ignore[arg-type]
        (lambda: Session(gap=HOUR, merge=None), "merge=None is not a function"),  # type: ignore[arg-type]
        (lambda: table(window=HOUR), "is none of Tumbling"),
        (lambda: table(window=Tumbling(hours=1), grace=-HOUR), "grace=.* is shorter than nothing"),
        (lambda: table(window=Tumbling(hours=1), grace=2 * HOUR, retain=HOUR), "is shorter than grace="),
        (lambda: table(window=Tumbling(hours=1), expire=HOUR), "expire by retain="),
        (lambda: table(window=Tumbling(hours=1), on_late="keep"), 'neither "drop" nor a topic'),
        (lambda: table(grace=HOUR), "grace= is for windows"),
        (lambda: table(retain=HOUR), "retain= is for windows"),
    ],
)
def test_windows_that_cannot_be(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        declare()


def app_with_all() -> tuple[App, Any, Any, Any, Any, Any]:
    app = App("bank")
    beats, out = app.topic("beats", key=str, value=int), app.topic("out", key=str, value=int)
    hourly = app.table("hourly", key=str, value=int, default=int, window=Tumbling(hours=1))
    visits = app.table("visits", key=str, value=int, default=int, window=Session(gap=HOUR, merge=add))
    silent = app.timers("silent", key=str)
    return app, beats, out, hourly, visits, silent


def test_calls_that_cannot_be() -> None:
    app, beats, out, hourly, visits, silent = app_with_all()
    plain = app.table("plain", key=str, value=int)
    with pytest.raises(
        DefinitionError, match=r"when_closed is for what app.table\(..., window=...\) gives, not for table 'plain'"
    ):
        app.when_closed(plain)(lambda window: None)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="when_due is for what"):
        app.when_due(hourly)(lambda due: None)
    with pytest.raises(DefinitionError, match="does not match the declaration"):
        app.when_due(silent, out)(lambda due, other: None)
    for kept in (silent, visits):
        with pytest.raises(DefinitionError, match="batch=True cannot have"):
            app.processor(beats, kept, batch=True, alias={kept: "kept"})(lambda beats, kept: None)

    async def slow(beat: Any, kept: Any) -> None: ...

    for kept in (silent, visits, hourly):
        with pytest.raises(DefinitionError, match="concurrency=3 cannot have"):
            app.processor(beats, kept, concurrency=3, alias={kept: "kept"})(slow)


def test_concurrency_beside_something_that_keeps_time() -> None:
    app, beats, _, hourly, _, _ = app_with_all()
    other = app.topic("other", key=str, value=int)
    shared = app.table("shared", key=str, value=int)

    @app.processor(beats, hourly, shared)
    def one(beat: Any, hourly: Any, shared: Any) -> None: ...

    @app.processor(other, shared, concurrency=2)
    async def two(record: Any, shared: Any) -> None: ...

    with pytest.raises(DefinitionError, match="goes by the order of all records"):
        app.topology()


def test_a_function_that_would_never_be_called() -> None:
    app, beats, out, _, _, silent = app_with_all()

    @app.processor(beats, out)
    def one(beat: Any, out: Any) -> None: ...

    @app.when_due(silent, out)
    def due(due: Any, out: Any) -> None: ...

    with pytest.raises(TopologyError, match="due would never be called"):
        app.topology()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"within": -HOUR}, "within=.* is shorter than nothing"),
        ({"within": (HOUR, -HOUR)}, "within=.* is shorter than nothing"),
        ({"within": 5}, "not a timedelta"),
        ({"within": HOUR, "grace": -HOUR}, "grace=.* is shorter than nothing"),
        ({"within": HOUR, "kind": "right"}, 'not one of "inner", "left", "outer"'),
        ({"within": HOUR, "on_late": 3}, 'neither "drop" nor a topic'),
    ],
)
def test_joins_that_cannot_be(options: dict[str, Any], message: str) -> None:
    app, beats, out, *_ = app_with_all()
    with pytest.raises(DefinitionError, match=message):
        app.join(beats, out, **options)(lambda left, right: None)


def test_joins_of_what_cannot_meet() -> None:
    app, beats, _, hourly, *_ = app_with_all()
    numbers = app.topic("numbers", key=int, value=int)
    with pytest.raises(DefinitionError, match="keys of 'beats' are str and those of 'numbers' int"):
        app.join(beats, numbers, within=HOUR)(lambda left, right: None)
    with pytest.raises(DefinitionError, match="cannot be joined"):
        app.join(beats, hourly, within=HOUR)(lambda left, right: None)
    with pytest.raises(DefinitionError, match="its first two are its records"):
        app.join(beats, beats, within=HOUR)(lambda left: None)


def test_of_another_app() -> None:
    app, beats, _, _, _, _ = app_with_all()
    other = App("other")
    with pytest.raises(DefinitionError, match="belongs to app 'other', not to 'bank'"):
        app.when_due(other.timers("t", key=str))(lambda due: None)
    with pytest.raises(DefinitionError, match="of app 'other'"):
        table_of_bank = app.table
        table_of_bank(
            "x", key=str, value=int, window=Tumbling(hours=1), on_late=other.topic("late", key=str, value=int)
        )
    with pytest.raises(DefinitionError, match="belongs to app 'other'"):
        app.join(beats, other.topic("beats", key=str, value=int), within=HOUR)(lambda left, right: None)


def test_a_change_of_windows_is_refused() -> None:
    kept = described(Tumbling(hours=1))
    with pytest.raises(
        PipelineError, match=r"stored as tumbling \(size_ms 3600000, .*not as tumbling \(size_ms 7200000"
    ):
        app_of(Tumbling(hours=2)).check_schema(kept)
    with pytest.raises(PipelineError, match="not as table"):
        app_of(None).check_schema(kept)
    with pytest.raises(PipelineError, match="stored as table, not as tumbling"):
        app_of(Tumbling(hours=1)).check_schema(described(None))
    app_of(Tumbling(hours=1)).check_schema(kept)


@pytest.mark.parametrize("window", [Tumbling(hours=1), Hopping(hours=2, every=HOUR), Session(gap=HOUR, merge=add)])
def test_another_grace_is_refused_where_windows_would_close_without_a_call_or_twice(window: Any) -> None:
    def version(grace: timedelta, *, is_announced: bool = True) -> App:
        app = App("bank")
        beats = app.topic("beats", key=str, value=int)
        sums = app.table("sums", key=str, value=int, default=int, window=window, grace=grace)
        app.processor(beats, sums)(lambda beat, sums: None)
        if is_announced:
            app.when_closed(sums)(lambda closed: None)
        return app

    kept = version(2 * HOUR).describe()
    with pytest.raises(
        SchemaRefused,
        match=r"'sums': .* a grace of 7200000 ms, .* 3600000 ms .* close without a call of when_closed; change grace= back",
    ):
        version(HOUR).check_schema(kept)
    with pytest.raises(
        SchemaRefused, match=r"'sums': .* 7200000 ms, .* 10800000 ms .* when_closed be called twice; change grace= back"
    ):
        version(3 * HOUR).check_schema(kept)
    for grace in (HOUR, 3 * HOUR):
        version(grace, is_announced=False).check_schema(kept)
    version(2 * HOUR).check_schema(kept)
    del kept["tables"]["sums"]["grace_ms"]
    version(3 * HOUR).check_schema(kept)


@pytest.mark.parametrize("kind", ["session", "join"])
def test_entries_that_lie_in_an_older_way_are_refused(kind: str) -> None:
    app = app_of(Session(gap=HOUR, merge=int.__add__))
    if kind == "join":
        app = App("bank")
        left, right = (app.topic(name, key=str, value=int) for name in ("left", "right"))
        app.join(left, right, within=HOUR)(lambda left, right: None)
    kept = msgspec.json.decode(msgspec.json.encode(app.describe()))
    app.check_schema(kept)
    older = [table["form"] for table in kept["tables"].values() if table.get("form", {}).get("kind") == kind]
    for form in older:
        assert form.pop("stored") == 2
    with pytest.raises(PipelineError, match=rf"it is stored as {kind} .*, not as {kind} .*stored 2"):
        app.check_schema(kept)


@pytest.mark.parametrize("kind", ["streams", "foreign keys"])
def test_what_a_join_keeps_is_of_its_two_sides(kind: str) -> None:
    """The kept records of one side would be taken for those of the other."""

    def joined(*names: str) -> App:
        app = App("bank")
        one, two = (app.topic(name, key=str, value=int) for name in names)
        if kind == "streams":
            app.join(one, two, within=HOUR)(pair)
        else:
            app.foreign_key_join(app.table_of(one), app.table_of(two), key=str)(pair)
        return app

    def pair(left: Any, right: Any) -> None: ...

    kept = msgspec.json.decode(msgspec.json.encode(joined("orders", "ships").describe()))
    joined("orders", "ships").check_schema(kept)
    for names in (("ships", "orders"), ("orders", "returns")):
        problem = f"'pair-join': what it keeps is of a join of orders and ships, not of {' and '.join(names)}; change it back, or"
        with pytest.raises(PipelineError, match=problem):
            joined(*names).check_schema(kept)
    for table in kept["tables"].values():
        table.pop("of", None)  # of a version that did not describe it
    joined("ships", "orders").check_schema(kept)


def app_of(window: Any) -> App:
    app = App("bank")
    beats = app.topic("beats", key=str, value=int)
    options = {} if window is None else {"window": window}
    sums = app.table("sums", key=str, value=int, default=int, **options)
    app.processor(beats, sums)(lambda beat, sums: None)
    return app


def described(window: Any) -> dict[str, Any]:
    return app_of(window).describe()


def test_late_records_do_not_come_back_to_who_reads_them() -> None:
    app = App("x", partitions=1)
    beats, others = app.topic("beats", key=str, value=int), app.topic("others", key=str, value=int)
    counts = app.table("counts", key=str, value=int, default=int, window=Tumbling(hours=1), on_late=beats)
    with pytest.raises(DefinitionError, match="late records to 'beats', which it reads"):

        @app.processor(beats, counts)
        def count(beat: Any, counts: Any) -> None: ...

    with pytest.raises(DefinitionError, match="late records to 'others', which it reads"):

        @app.join(beats, others, within=timedelta(hours=1), on_late=others)
        def match(beat: Any, other: Any) -> None: ...


def test_late_records_go_to_a_topic_of_their_types() -> None:
    app = App("x")
    beats = app.topic("beats", key=str, value=int)
    for key, value, message in (
        (int, int, "its keys differ: str there, int here"),
        (str, str, "its values differ: int there, str here"),
    ):
        late = app.topic(f"late-{key.__name__}-{value.__name__}", key=key, value=value)
        counts = app.table(
            f"c-{key.__name__}-{value.__name__}", key=str, value=int, window=Tumbling(hours=1), on_late=late
        )
        with pytest.raises(
            DefinitionError, match=f"sends records of 'beats' to '{late.name}' as they came, and {message}"
        ):
            app.processor(beats, counts, alias={counts: "counts"})(lambda beat, counts: None)
    raw = app.topic("raw", key=bytes, value=bytes)
    counts = app.table("counts", key=str, value=int, window=Tumbling(hours=1), on_late=raw)
    app.processor(beats, counts)(lambda beat, counts: None)
    with pytest.raises(DefinitionError, match="values differ"):
        app.join(beats, beats, within=HOUR, on_late=app.topic("words", key=str, value=str))(lambda beat, other: None)


def test_late_values_of_the_same_kind_must_be_readable() -> None:
    app = App("x")
    pairs, lists = app.topic("pairs", key=str, value=dict[str, int]), app.topic("lists", key=str, value=dict[str, str])
    counts = app.table("counts", key=str, value=int, window=Tumbling(hours=1), on_late=lists)
    with pytest.raises(DefinitionError, match="its values differ"):
        app.processor(pairs, counts)(lambda pair, counts: None)


@pytest.mark.parametrize("is_rekeyed", [False, True])
def test_late_records_do_not_go_in_a_circle(is_rekeyed: bool) -> None:
    app = App("x")
    one, other = app.topic("one", key=str, value=int), app.topic("other", key=str, value=int)
    read = other.rekey("again", key=str, by=lambda record: record.key) if is_rekeyed else other
    to_other = app.table("to-other", key=str, value=int, window=Tumbling(hours=1), on_late=other)
    to_one = app.table("to-one", key=str, value=int, window=Tumbling(hours=1), on_late=one)

    @app.processor(one, to_other)
    def first(record: Any, to_other: Any) -> None: ...

    @app.processor(read, to_one)
    def second(record: Any, to_one: Any) -> None: ...

    with pytest.raises(
        DefinitionError, match=r"late records of 'one' come back to it by on_late= of first, .*second, late"
    ):
        app.topology()


@pytest.mark.parametrize(
    "made",
    [
        lambda: Tumbling(hours=0),
        lambda: Tumbling(hours=1, offset=HOUR),
        lambda: Tumbling(days=1, zone="Europe/Nowhere"),
        lambda: Hopping(hours=1, every=2 * HOUR),
        lambda: Hopping(hours=1, every=timedelta(0)),
        lambda: Sliding(),
        lambda: Session(gap=timedelta(0), merge=max),
        lambda: Session(gap=HOUR, merge=None),  # type: ignore[arg-type]
    ],
)
def test_windows_without_a_name_are_known_by_where_they_are_written(made: Callable[[], object]) -> None:
    line = made.__code__.co_firstlineno
    with pytest.raises(DefinitionError, match=rf"^[A-Z][a-z]+ at test_definitions\.py:{line}: "):
        made()


def test_a_global_table_has_no_timers_and_nothing_of_it_closes_or_comes_due() -> None:
    """Its records belong to no task."""
    app: Any = App("bank")
    rates = app.global_table(app.topic("rates", key=str, value=int))
    silent = app.timers("silent", key=str)
    one = "global table 'rates'"
    with pytest.raises(DefinitionError, match=one):
        app.processor(rates, silent)(lambda rate, silent: None)
    with pytest.raises(DefinitionError, match=one):
        app.when_due(rates)(lambda due: None)
    with pytest.raises(DefinitionError, match=one):
        app.when_closed(rates)(lambda window: None)
    with pytest.raises(DefinitionError, match="<timers 'silent' of app 'bank'> is no topic"):
        app.global_table(silent)


@pytest.mark.parametrize(("of", "to"), [(list[str], list[datetime]), (dict[str, int], dict[int, int])])
def test_late_records_are_no_times_or_keys_where_texts_were(of: Any, to: Any) -> None:
    app = App("x", partitions=1)
    beats, late = app.topic("beats", key=str, value=of), app.topic("late", key=str, value=to)
    counts = app.table("counts", key=str, value=int, default=int, window=Tumbling(hours=1), on_late=late)
    with pytest.raises(DefinitionError, match="late"):
        app.processor(beats, counts)(lambda beat, counts: None)
