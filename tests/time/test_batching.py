"""An answer does not depend on how records were batched: the same calls, in the same order, for every cut."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.testing import Driver
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from tests.time.scenario import Play

DECLARED = [
    "timers silent 7 again 30",
    "tumbling sums 10 grace 3 retain 12",
    "hopping overlaps 10 every 4 grace 2",
    "sliding slides 6 grace 3 retain 9",
    "session visits 4 grace 3 retain 9",
    "timers back -9 other -3",
    "join pairs beats ships outer 3 6 grace 2",
    "join selves beats beats left 2 2",
]
Record = tuple[str, str, int]
records = st.lists(
    st.tuples(st.sampled_from(["beats", "ships"]), st.sampled_from(["a", "b", "ab"]), st.integers(0, 60)), max_size=25
)


def played(given_records: list[Record], cuts: set[int]) -> tuple[list[str], list[object], dict[str, object]]:
    """Calls, what was sent, and what all tables hold, where a batch ends before each of `cuts`."""
    play = Play(DECLARED)
    with Driver(play.app) as driver:
        at = 0
        for end in [*sorted(cuts), len(given_records)]:
            with driver.together():
                for number in range(at, end):
                    topic, key, timestamp_ms = given_records[number]
                    driver.send(play.topics[topic], key, number, timestamp_ms=timestamp_ms)
            at = end
        tables = {name: driver.table(table) for name, table in play.stored.items()}
        return play.calls, list(driver.records(play.out)), dict(tables)


@settings(max_examples=150, deadline=None)
@given(records=records, data=st.data())
def test_cuts_change_nothing(records: list[Record], data: st.DataObject) -> None:
    """Sorted by time, topic: the order in which a task takes what lies before it, whatever the cut."""
    records = sorted(records, key=lambda record: (record[2], record[0]))
    cuts = data.draw(st.sets(st.integers(0, len(records))))
    assert played(records, cuts) == played(records, set())


def reopened(given_records: list[Record], often: int) -> tuple[list[str], dict[str, object]]:
    """The same by a task that is given up and opened again, from what its stores hold, after every `often` units."""
    play = Play(DECLARED)
    topology = play.app.topology()
    (sub,) = topology.subtopologies
    stores = {table: DictStore() for table in sub.tables}
    counts = {name: topic.partitions for name, topic in topology.topics.items()}
    left = [
        (topic, SourceRecord(number, at, key.encode(), number.to_bytes(8, "big")))
        for number, (topic, key, at) in enumerate(given_records)
    ]
    while left:
        process = TaskProcess(play.app, sub, 0, stores, counts)
        clock = itertools.count()
        done = process.run(left, lambda clock=clock: next(clock), often)  # type: ignore[misc]
        changes = process.collect()
        for table, written in changes.writes.items():
            stores[table].write(written)
        left = left[done:]
    return play.calls, {name: dict(table.pairs(stores[name])) for name, table in play.stored.items()}


@settings(max_examples=100, deadline=None)
@given(records=records, often=st.integers(0, 3))
def test_an_interrupted_task_goes_on_with_the_next_call(records: list[Record], often: int) -> None:
    records = sorted(records, key=lambda record: (record[2], record[0]))
    calls, _, tables = played(records, set())
    assert reopened(records, often) == (calls, tables)
