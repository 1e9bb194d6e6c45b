"""Subtopologies: what belongs together, numbers that never move, partition counts, changelogs and re-keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App
from orchestrator.testing import Driver
from pipeline.definitions.numbering import number
from pipeline.definitions.topology import Subtopology
from pipeline.errors import DecodingFailed, DefinitionError, TopologyError, TopologyRefused

Shape = list[tuple[list[str], list[str], list[str]]]  # of each processor: sources, tables, sinks


def nothing(*names: str) -> Any:
    """A function with these parameters."""
    scope: dict[str, Any] = {}
    exec(f"def f(record, {', '.join(names)}): pass" if names else "def f(record): pass", scope)
    return scope["f"]


def make(shape: Shape, partitions: int = 2, counts: dict[str, int] | None = None, app_id: str = "x") -> App:
    app = App(app_id, partitions=partitions)
    for sources, tables, sinks in shape:
        for name in (*sources, *sinks):
            if name not in app.topics:
                app.topic(name, key=str, value=str, partitions=(counts or {}).get(name))
        for name in tables:
            if name not in app.tables:
                app.table(name, key=str, value=str)
        others: list[Any] = [*(app.tables[name] for name in tables), *(app.topics[name] for name in sinks)]
        app.processor([app.topics[name] for name in sources], *others)(nothing(*tables, *sinks))
    return app


def sources_by_number(app: App, kept: Any = None) -> dict[int, tuple[str, ...]]:
    return {sub.number: sub.sources for sub in app.topology(kept).subtopologies}


def test_shared_sources_and_tables_belong_together_and_sinks_do_not() -> None:
    app = make(
        [(["a"], ["t"], ["out"]), (["b"], ["t"], []), (["b", "c"], [], []), (["d"], ["u"], ["out"]), (["out"], [], [])]
    )
    topology = app.topology()
    assert [(sub.number, sub.sources, sub.tables, sub.sinks, sub.stateful) for sub in topology.subtopologies] == [
        (0, ("a", "b", "c"), ("t",), ("out",), True),
        (1, ("d",), ("u",), ("out",), True),
        (2, ("out",), (), (), False),
    ]
    assert topology.tasks() == ["0_0", "0_1", "1_0", "1_1", "2_0", "2_1"]


def test_tasks_are_in_natural_order() -> None:
    assert make([(["a"], [], [])], partitions=11).topology().tasks()[-2:] == ["0_9", "0_10"]


def test_topics_of_an_app() -> None:
    app = make([(["a"], ["t"], ["out"])])
    by_value = app.topics["a"].rekey("by-value", key=str, by=lambda record: record.value)
    app.processor(by_value)(nothing())
    topics = app.topology().topics
    assert {name: (topic.kind, topic.written, topic.partitions) for name, topic in topics.items()} == {
        "a": ("plain", False, 2),
        "out": ("plain", True, 2),
        "x-t-changelog": ("changelog", True, 2),
        "x-by-value-repartition": ("repartition", True, 2),
    }
    assert sources_by_number(app) == {0: ("a",), 1: ("x-by-value-repartition",)}


def test_a_dead_letter_topic_is_written() -> None:
    app = make([(["a"], [], [])])
    dead = app.topic("dead", key=bytes, value=bytes)
    app.on_error = dead
    assert app.topology().topics["dead"].written and app.topology().subtopologies[0].sinks == ("dead",)


def test_dead_letters_that_come_back_are_refused() -> None:
    """At once, by the app's choice, by way of others, or of a re-key; the readers of dead letters may give them up."""

    def app_of(*ways: tuple[str, str], rest: str = "stop") -> App:
        app = App("x", on_error=rest)
        topics = {name: app.topic(name, key=str, value=bytes) for name in ("in", "dead", "worse")}
        for source, choice in ways:
            app.processor(topics[source], on_error=topics.get(choice, choice or None))(lambda record: None)
        return app

    app_of(("in", "dead"), ("dead", "worse"), ("worse", "skip")).topology()
    app_of(("in", ""), ("dead", ""), rest="dead").topology()
    for app in (
        app_of(("in", "in")),
        app_of(("in", ""), ("dead", "dead"), rest="dead"),
        app_of(("in", "dead"), ("dead", "worse"), ("worse", "in")),
    ):
        with pytest.raises(DefinitionError, match=r"dead letters of '\w+' come back to it by on_error= of <lambda>"):
            app.topology()
    app = app_of(("worse", "skip"))
    again = app.topics["dead"].rekey("again", key=str, by=lambda record: record.key)
    app.processor(again, on_error={ValueError: app.topics["dead"]})(lambda record: None)
    with pytest.raises(DefinitionError, match="come back"):
        app.topology()


@pytest.mark.parametrize("rest", ["stop", "dead"])
def test_a_dead_letter_that_a_table_cannot_read_does_not_go_round(rest: str) -> None:
    """The processor that has it as a table stops there: each letter of it would be one more that cannot be read."""
    app = App("x", partitions=1, on_error=rest)
    orders, dead = app.topic("orders", key=str, value=int), app.topic("dead", key=str, value=int)
    app.processor(orders, app.table_of(dead), on_error=dead if rest == "stop" else None)(
        lambda order, dead: 1 / order.value
    )
    with Driver(app) as driver:
        driver.send(orders, "ann", 0)  # which can be read as a letter
        assert driver.items(dead) == [("ann", 0)]
        with pytest.raises(DecodingFailed, match="cannot read dead-0@1"):
            driver.send_bytes(orders, b"ann", b"no number")
        assert len(driver._records["dead"]) == 2


def test_dead_letters_that_come_back_by_way_of_a_table_are_refused() -> None:
    app = App("x", partitions=1)
    orders, dead = app.topic("orders", key=str, value=int), app.topic("dead", key=str, value=int)
    worse = app.topic("worse", key=str, value=int)
    app.processor(orders, app.table_of(worse), on_error=dead)(lambda order, worse: None)
    app.processor(dead, on_error=worse)(lambda letter: None)
    with pytest.raises(DefinitionError, match="dead letters of 'worse' come back to it"):
        app.topology()


def test_counts_must_be_equal_and_are_named() -> None:
    app = make([(["a", "b"], [], [])], counts={"b": 5})
    with pytest.raises(TopologyError, match="a has 2, b has 5"):
        app.topology()


def test_topics_without_state_grow_one_after_the_other() -> None:
    """There are tasks for the largest; each topic keeps what it has. With a table, or not there yet, it is refused."""
    topology = make([(["a", "b"], [], [])]).topology().with_partitions({"a": 2, "b": 5})
    assert [sub.partitions for sub in topology.subtopologies] == [5]
    assert {name: topic.partitions for name, topic in topology.topics.items()} == {"a": 2, "b": 5}
    with pytest.raises(TopologyError, match=r"a has 2, b has 5.*give its topics equal counts"):
        make([(["a", "b"], [], [])]).topology().with_partitions({"b": 5})
    with pytest.raises(
        TopologyError, match=r"a has 2, b has 5, x-t-changelog has 2.*must not grow once there is state"
    ):
        make([(["a", "b"], ["t"], [])]).topology().with_partitions({"a": 2, "b": 5, "x-t-changelog": 2})


def test_an_existing_count_wins() -> None:
    app = make([(["a"], ["t"], ["out"]), (["b"], [], [])], counts={"a": 3})
    topology = app.topology().with_partitions({"a": 7, "out": 4, "unknown": 9})
    assert [sub.partitions for sub in topology.subtopologies] == [7, 2]
    assert {name: topic.partitions for name, topic in topology.topics.items()} == {
        "a": 7,
        "b": 2,
        "out": 4,
        "x-t-changelog": 7,
    }
    with pytest.raises(TopologyError, match="a has 7, x-t-changelog has 3"):
        app.topology().with_partitions({"a": 7, "x-t-changelog": 3})


def test_a_rekey_follows_the_topics_it_is_read_with() -> None:
    app = make([(["a"], [], [])], counts={"b": 5})
    by_value = app.topics["a"].rekey("by-value", key=str, by=lambda record: record.value)
    other = app.topic("b", key=str, value=str, partitions=5)
    app.processor([by_value, other])(nothing())
    topology = app.topology()
    assert topology.topics["x-by-value-repartition"].partitions == 5
    assert topology.with_partitions({"b": 6}).topics["x-by-value-repartition"].partitions == 6
    with pytest.raises(TopologyError, match="b has 6, x-by-value-repartition has 5"):
        topology.with_partitions({"b": 6, "x-by-value-repartition": 5})


def test_an_app_without_processors_is_an_error() -> None:
    app = App("empty")
    topic = app.topic("a", key=str, value=str)
    with pytest.raises(TopologyError, match="app 'empty' has no processors"):
        app.topology()
    topic.rekey("b", key=str, by=lambda record: record.value)
    with pytest.raises(TopologyError, match="no processors"):
        app.topology()


def test_two_definitions_of_one_topic_of_the_log() -> None:
    app = make([(["a", "x-t-changelog"], ["t"], [])])
    with pytest.raises(DefinitionError, match="both mean the topic 'x-t-changelog'"):
        app.topology()


# numbers


def test_inserting_a_processor_renumbers_nothing() -> None:
    old = make([(["b"], ["t"], []), (["d"], [], [])])
    kept = json.loads(json.dumps(old.topology().numbering()))
    new = make([(["a"], [], []), (["b"], ["t"], []), (["c"], [], []), (["d"], [], [])])
    assert sources_by_number(new, kept) == {0: ("b",), 1: ("d",), 2: ("a",), 3: ("c",)}


def test_a_number_is_never_given_again() -> None:
    first = make([(["a"], [], []), (["b"], [], [])]).topology().numbering()
    without = make([(["b"], [], [])]).topology(first)
    assert [sub.number for sub in without.subtopologies] == [1]
    with_new = make([(["b"], [], []), (["c"], [], [])]).topology(without.numbering())
    assert {sub.number: sub.sources for sub in with_new.subtopologies} == {1: ("b",), 2: ("c",)}
    back = make([(["a"], [], []), (["b"], [], [])]).topology(with_new.numbering())
    assert {sub.number: sub.sources for sub in back.subtopologies} == {0: ("a",), 1: ("b",)}


def test_of_a_split_piece_the_part_with_the_state_keeps_the_number() -> None:
    kept = make([(["a", "b", "c"], [], []), (["c"], ["t"], [])]).topology().numbering()
    split = make([(["a", "b"], [], []), (["c"], ["t"], [])])
    assert sources_by_number(split, kept) == {0: ("c",), 1: ("a", "b")}


def test_joined_pieces_and_back() -> None:
    parts: Shape = [(["a"], ["t"], []), (["b"], ["u"], [])]
    kept = make(parts).topology().numbering()
    joined = make([*parts, (["a", "b"], [], [])]).topology(kept)
    assert [sub.number for sub in joined.subtopologies] == [0]
    assert sources_by_number(make(parts), joined.numbering()) == {0: ("a",), 1: ("b",)}


def test_another_app_under_the_same_id_is_refused() -> None:
    kept = make([(["a"], ["t"], [])]).topology().numbering()
    with pytest.raises(TopologyRefused, match="no topic or table in common"):
        make([(["b"], ["u"], [])]).topology(kept)


NAMES = st.frozensets(st.sampled_from([f"topic {c}" for c in "abcdef"] + [f"table {c}" for c in "tu"]), min_size=1)


@given(st.lists(st.lists(NAMES, min_size=1, max_size=4), min_size=1, max_size=5))
def test_laws_of_numbers(versions: list[list[frozenset[str]]]) -> None:
    """Over any history: numbers are distinct, nothing given twice to different things, no change keeps all."""
    kept: dict[str, Any] | None = None
    ever = 0
    for pieces in versions:
        found = number(pieces, kept)
        if found is None:
            assert kept is not None
            old = frozenset(name for item in kept["subtopologies"] for name in item["names"])
            assert not any(piece & old for piece in pieces)
            continue
        assert len(set(found.given)) == len(pieces)
        known = {item["number"]: set(item["names"]) for item in (kept or {}).get("subtopologies", [])}
        for given_number, piece in zip(found.given, pieces, strict=True):
            assert given_number >= ever or piece & known[given_number]
        kept = found.kept()
        ever = max(ever, *(n + 1 for n in found.given))
        again = number(pieces, kept)
        assert again is not None
        if len(set(pieces)) == len(pieces):
            assert again.given == found.given and again.kept() == kept


def test_subtopology_by_number() -> None:
    topology = make([(["a"], [], [])]).topology()
    assert isinstance(topology.subtopology(0), Subtopology)
    with pytest.raises(TopologyError, match="no subtopology 3; there are 0"):
        topology.subtopology(3)


def test_of_two_numbers_the_one_with_fewer_other_names_fits() -> None:
    kept = {"subtopologies": [{"number": 0, "names": ["topic a", "topic b"]}, {"number": 1, "names": ["topic a"]}]}
    found = number([frozenset({"topic a"}), frozenset({"topic b"})], kept)
    assert found is not None and found.given == (1, 0)


def test_a_first_version_is_numbered_from_the_inputs_on() -> None:
    app = make([(["z"], [], [])], app_id="a")
    app.processor(app.topics["z"].rekey("b", key=str, by=lambda record: record.value))(nothing())
    assert sources_by_number(app) == {0: ("z",), 1: ("a-b-repartition",)}
