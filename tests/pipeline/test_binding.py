"""What is declared wrongly is said when the module is imported; a definition is never the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Tumbling
from orchestrator.testing import Driver
from pipeline.definitions.definition import Declared
from pipeline.errors import DefinitionError, DefinitionUsed


@pytest.fixture
def app() -> App:
    made = App("x", partitions=2)
    made.topic("in", key=str, value=str)
    made.topic("alerts", key=str, value=str)
    made.table("balances", key=str, value=int, default=int)
    made.topic("by-tail.number", key=str, value=str)
    return made


def declare(app: App, function: Callable[..., Any], **options: Any) -> Any:
    return app.processor(app.topics["in"], app.tables["balances"], app.topics["alerts"], **options)(function)


def test_the_function_comes_back_unchanged(app: App) -> None:
    def settle(payment: Any, balances: Any, alerts: Any) -> None: ...

    assert declare(app, settle) is settle


def test_swapped_parameters(app: App) -> None:
    def settle(payment: Any, alerts: Any, balances: Any) -> None: ...

    with pytest.raises(DefinitionError) as raised:
        declare(app, settle)
    assert str(raised.value).startswith("settle(alerts, balances) does not match the declaration (balances, alerts)")


def test_a_decorator_without_its_source(app: App) -> None:
    def settle(payment: Any) -> None: ...

    with pytest.raises(
        DefinitionError, match=r"@app\.processor above settle has no source; write @app\.processor\(topic"
    ):
        app.processor(settle)  # type: ignore[call-overload]
    assert not app.processors


def test_missing_or_more_parameters(app: App) -> None:
    def fewer(payment: Any, balances: Any) -> None: ...
    def more(payment: Any, balances: Any, alerts: Any, clock: Any) -> None: ...
    def none() -> None: ...
    def star(payment: Any, *rest: Any) -> None: ...
    def named(payment: Any, balances: Any, alerts: Any, *, clock: Any) -> None: ...

    for function, match in (
        (fewer, r"fewer\(balances\) does not match the declaration \(balances, alerts\)"),
        (more, r"more\(balances, alerts, clock\) does not match"),
        (none, "takes no record"),
        (star, r"\*rest has no declared name"),
        (named, "clock is keyword-only"),
    ):
        with pytest.raises(DefinitionError, match=match):
            declare(app, function)


def test_what_has_a_default_need_not_be_declared(app: App) -> None:
    def factor(payment: Any, balances: Any, alerts: Any, factor: int = 2, *, log: bool = False) -> None: ...
    def optional(payment: Any, balances: Any = None, alerts: Any = None) -> None: ...

    assert declare(app, factor) is factor
    assert declare(app, optional) is optional


def test_signs_become_underscores_and_alias_renames(app: App) -> None:
    def plain(record: Any, by_tail_number: Any) -> None: ...
    def renamed(record: Any, tails: Any) -> None: ...

    topic = app.topics["by-tail.number"]
    app.processor(app.topics["in"], topic)(plain)
    app.processor(app.topics["in"], topic, alias={topic: "tails"})(renamed)
    app.processor(app.topics["in"], topic, alias={"by-tail.number": "tails"})(renamed)
    own = app.topic("2024-flights", key=str, value=str, alias="tails")
    app.processor(app.topics["in"], own)(renamed)
    with pytest.raises(DefinitionError, match="alias= names other"):
        app.processor(app.topics["in"], topic, alias={"other": "tails"})(renamed)
    with pytest.raises(DefinitionError, match="alias='tails' does not say of what"):
        app.processor(app.topics["in"], topic, alias="tails")(renamed)  # type: ignore[arg-type]
    keyword = app.topic("class", key=str, value=str)
    with pytest.raises(DefinitionError, match="'class' cannot be a parameter's name; give alias="):
        app.processor(app.topics["in"], keyword)(renamed)


def test_generators_are_refused(app: App) -> None:
    def settle(payment: Any, balances: Any, alerts: Any) -> Iterator[int]:
        yield 1

    with pytest.raises(DefinitionError, match=r"settle yields.*send\(\)"):
        declare(app, settle)


def test_what_can_be_declared_and_what_not(app: App) -> None:
    def take(record: Any, thing: Any) -> None: ...

    source, table = app.topics["in"], app.tables["balances"]
    for sources, others, match in (
        (table, (), "table 'balances' cannot be a processor's source"),
        ([], (), "needs a source"),
        ("in", (), "'in' cannot be a processor's source"),
        ([source, source], (), "topic 'in' is given twice"),
        (source, (table, table), "table 'balances' is given twice"),
        (source, (5,), "5 cannot be declared"),
        (source, (source.rekey("again", key=str, by=len),), "records come to it from 'in' alone"),
    ):
        with pytest.raises(DefinitionError, match=match):
            app.processor(sources, *others)(take)  # type: ignore[arg-type]


def test_definitions_of_another_app_are_refused(app: App) -> None:
    def take(record: Any, balances: Any) -> None: ...

    other = App("y")
    topic = other.topic("in", key=str, value=str)
    table = other.table("balances", key=str, value=int)
    with pytest.raises(DefinitionError, match="topic 'in' belongs to app 'y', not to 'x'"):
        app.processor(topic)(take)
    with pytest.raises(DefinitionError, match="table 'balances' belongs to app 'y', not to 'x'"):
        app.processor(app.topics["in"], table)(take)


USES: list[Callable[[Any], Any]] = [
    lambda d: d["a"],
    lambda d: d.__setitem__("a", 1),
    lambda d: d.__delitem__("a"),
    lambda d: "a" in d,
    lambda d: list(d),
    lambda d: len(d),
    lambda d: d.get("a"),
    lambda d: d.items(),
    lambda d: d.pop("a"),
    lambda d: d.range(),
    lambda d: d.send("a", "b"),
    lambda d: d == {"a": 1},
    lambda d: d == [("a", 1)],
    lambda d: d.put(["a"], [1]),
    lambda d: d.count(1),
    lambda d: d + 1,
    lambda d: d < 0,
    lambda d: {} | d,
]


@pytest.mark.parametrize("use", USES)
def test_a_definition_is_not_the_data(app: App, use: Callable[[Any], Any]) -> None:
    told = r" is a definition; declare it on the processor and use the argument"
    with pytest.raises(DefinitionUsed, match="table 'balances'" + told):
        use(app.tables["balances"])
    with pytest.raises(DefinitionUsed, match="topic 'alerts'" + told):
        use(app.topics["alerts"])


def test_a_resource_is_not_what_it_makes(app: App) -> None:
    @app.resource
    def client() -> Any: ...

    with pytest.raises(DefinitionUsed, match="resource 'client' is a definition; declare it on the processor"):
        client.fetch("a")  # type: ignore[attr-defined]
    assert not hasattr(client, "_private")


def test_definitions_are_ordinary_objects_otherwise(app: App) -> None:
    table: Declared[Any] = app.tables["balances"]
    assert table == table and table != app.topics["in"] and table in {table: 1}
    assert bool(table) and "balances" in repr(table)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        table.colour  # type: ignore[attr-defined]


def test_names_and_options_of_an_app(app: App) -> None:
    for make, match in (
        (lambda: App("a b"), "'a b' is no name"),
        (lambda: App(""), "'' is no name"),
        (lambda: App("x", partitions=0), "partitions=0"),
        (lambda: App("x", partitions=100_001), "app 'x': partitions= is above 100000"),
        (lambda: app.topic("new", key=str, value=str, partitions=10**9), "topic 'new': partitions= is above 100000"),
        (
            lambda: app.topics["in"].rekey("new", key=str, by=lambda record: record.key, partitions=10**5_000),
            "topic 'new': partitions= is above 100000",
        ),
        (lambda: App("x", guarantee="exactly-twice"), "guarantee='exactly-twice'"),  # type: ignore[arg-type]
        (lambda: app.topic("in", key=str, value=str), "two topics called 'in'"),
        (lambda: app.table("balances", key=str, value=str), "two tables called 'balances'"),
        (lambda: app.timers("balances", key=str), "has table and timers called 'balances'"),
        (lambda: app.topic("new", key=str, value=str, partitions=-1), "partitions=-1"),
        (lambda: app.topic("new", key=str, value=str, start="now"), "start='now'"),  # type: ignore[call-overload]
        (lambda: app.processor(app.topics["in"], timeout=0)(lambda record: None), "timeout=0"),
    ):
        with pytest.raises(DefinitionError, match=match):
            make()


@pytest.mark.parametrize(
    "what", ["processor", "columns", "when_due", "when_closed", "join", "table join", "keyed join"]
)
def test_a_timeout_is_for_calls_that_wait(what: str) -> None:
    """Calls of a plain function went on past it, without a word."""
    app = App("x")
    one, other = (app.topic(name, key=str, value=str) for name in ("one", "other"))
    due, sums = app.timers("due", key=str), app.table("sums", key=str, value=int, window=Tumbling(hours=1))
    declare: dict[str, Callable[..., Any]] = {
        "processor": lambda **wait: app.processor(one, **wait),
        "columns": lambda **wait: app.processor(one, columns=True, **wait),
        "when_due": lambda **wait: app.when_due(due, **wait),
        "when_closed": lambda **wait: app.when_closed(sums, **wait),
        "join": lambda **wait: app.join(one, other, within=timedelta(hours=1), **wait),
        "table join": lambda **wait: app.table_join(one, other, **wait),
        "keyed join": lambda **wait: app.foreign_key_join(one, other, key=lambda value: value, **wait),
    }
    if "join" in what:

        def call(left: Any, right: Any) -> None: ...

        async def ask(left: Any, right: Any) -> None: ...
    else:

        def call(record: Any) -> None: ...

        async def ask(record: Any) -> None: ...

    for timeout in (5, timedelta(seconds=5)):
        with pytest.raises(DefinitionError) as raised:
            declare[what](timeout=timeout)(call)
        assert str(raised.value).startswith(
            f"call: timeout={timeout!r} is for calls that wait; declare call with async def"
        )
        assert "--max-call" in str(raised.value) and not app.processors
    if what != "columns":
        declare[what](timeout=5)(ask)
        assert next(iter(app.processors.values())).timeout_s == 5


@pytest.mark.parametrize("alias", [-1, 5, 0, False, [], "", "a b", "class", object()])
def test_an_alias_is_the_name_of_a_parameter(app: App, alias: Any) -> None:
    """Where it is declared: a processor may come much later, or have no parameter for it."""
    source: Any = app.topics["in"]
    declared: dict[str, Callable[[], Any]] = {
        "topic 'new'": lambda: app.topic("new", key=str, value=str, alias=alias),
        "topic 'other'": lambda: source.rekey("other", key=str, by=lambda record: record.key, alias=alias),
        "table 'new'": lambda: app.table("new", key=str, value=int, alias=alias),
        "table 'sums'": lambda: app.table("sums", key=str, value=int, window=Tumbling(hours=1), alias=alias),
        "timers 'new'": lambda: app.timers("new", key=str, alias=alias),
        "table of topic 'in'": lambda: app.table_of(source, alias=alias),
        "global table 'in'": lambda: app.global_table(source, alias=alias),
    }
    for what, declare_it in declared.items():
        with pytest.raises(DefinitionError) as raised:
            declare_it()
        assert str(raised.value).startswith(f"{what}: alias={alias!r} cannot be a parameter's name")
    with pytest.raises(DefinitionError, match="cannot be a parameter's name"):
        app.processor(source, app.topics["alerts"], alias={"alerts": alias})(lambda record, alerts: None)


def test_a_driver_takes_the_partitions_that_a_topic_can_have(app: App) -> None:
    app.processor(app.topics["in"])(lambda record: None)
    for partitions, match in ((10**9, "Driver: partitions= is above 100000"), (0, "Driver: partitions=0 is not")):
        with pytest.raises(DefinitionError, match=match):
            Driver(app, partitions=partitions)


def test_one_function_on_several_sources_has_several_names(app: App) -> None:
    def count(record: Any) -> None: ...

    app.processor(app.topics["in"])(count)
    app.processor(app.topics["alerts"])(count)
    assert list(app.processors) == ["count", "count-2"]


def test_the_app_knows_its_module(app: App) -> None:
    assert app.module == __name__


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda app: app.table("t", key=str, value=int, expires=1),
            "table 't': there is no option expires=; there are default=, ",
        ),
        (
            lambda app: app.table("t", key=str, value=int, window=Tumbling(hours=1), late=1),
            "table 't': there is no option late=",
        ),
        (
            lambda app: app.timers("t", key=str, default=int),
            "timers 't': there is no option default=; there are route=, local=, alias=",
        ),
        (
            lambda app: app.topic("t", key=str, value=int, retain=1),
            "topic 't': there is no option retain=; there are partitions=, ",
        ),
        (lambda app: app.topic("t", key=str, value=int, is_between=True), "topic 't': there is no option is_between="),
        (lambda app: app.table("t", key=str, value=int, local=5), "table 't': local=5 is neither True nor False"),
        (lambda app: app.timers("t", key=str, local="no"), "timers 't': local='no' is neither True nor False"),
        (
            lambda app: app.processor(app.topic("t", key=str, value=int), batch="yes")(lambda record: None),
            "<lambda>: batch='yes' is neither True nor False",
        ),
        (
            lambda app: app.processor(app.topic("t", key=str, value=int), columns=1)(lambda record: None),
            "<lambda>: columns=1 is neither True nor False",
        ),
    ],
)
def test_an_option_that_there_is_not(app: App, wrong: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        wrong(app)
    assert str(raised.value).startswith(said)
