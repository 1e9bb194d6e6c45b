"""The order in which a task takes its records, and that cutting the input changes nothing of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.merge import Merger
from pipeline.records import SourceRecord

Times = dict[tuple[str, int], list[int]]

TIMES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1)), st.lists(st.integers(0, 6), max_size=8), max_size=5
)


def merger(times: Times) -> Merger:
    made = Merger()
    for (topic, partition), stamps in times.items():
        made.add(topic, partition, records(topic, partition, stamps))
    return made


def records(topic: str, partition: int, stamps: list[int]) -> list[SourceRecord]:
    return [SourceRecord(n, stamp, f"{topic}{partition}".encode(), None) for n, stamp in enumerate(stamps)]


def by_definition(times: Times) -> list[tuple[str, SourceRecord]]:
    """One record at a time: the head with the smallest (timestamp, topic, partition)."""
    left = {place: records(*place, stamps) for place, stamps in times.items()}
    result = []
    while any(left.values()):
        place = min((waiting[0].timestamp_ms, *place) for place, waiting in left.items() if waiting)[1:]
        result.append((place[0], left[place].pop(0)))
    return result


@given(TIMES)
def test_smallest_timestamp_then_topic_then_partition(times: Times) -> None:
    assert merger(times).take(1000) == by_definition(times)


@given(TIMES, st.lists(st.integers(0, 4), max_size=30))
def test_cuts_change_nothing(times: Times, cuts: list[int]) -> None:
    made = merger(times)
    taken = [item for limit in cuts for item in made.take(limit)] + made.take(1000)
    assert taken == by_definition(times)
    assert len(made) == 0


@given(TIMES, st.integers(0, 10))
def test_none_is_taken_before_one_that_is_on_its_way(times: Times, limit: int) -> None:
    """Where the last record that waits of a partition is taken, an earlier one than the next may come."""
    made = merger(times)
    taken = made.take(limit, to_first_end=True)
    assert taken == by_definition(times)[: len(taken)]
    gone = [place for place, stamps in times.items() if stamps and not made.has_head(*place)]
    assert len(taken) == min(limit, sum(map(len, times.values()))) or (gone and taken[-1][0] == gone[0][0])
    assert len(gone) <= 1


@given(TIMES, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_what_is_put_back_comes_again(times: Times, cuts: list[tuple[int, int]]) -> None:
    times = {(topic, 0): stamps for (topic, partition), stamps in times.items() if partition == 0}
    made = merger(times)
    taken: list[tuple[str, SourceRecord]] = []
    for limit, kept in cuts:
        records = made.take(limit)
        made.put_back(0, records[kept:])
        taken += records[:kept]
    assert taken + made.take(1000) == by_definition(times)


def test_a_gap_is_one_once_all_before_it_is_taken() -> None:
    made = Merger()
    made.add("a", 0, [SourceRecord(3, 0, None, None)], next_position=9)
    assert made.gaps() == {}
    record = made.take(1)
    assert made.gaps() == {("a", 0): 9}
    made.put_back(0, record)
    assert made.gaps() == {} and made.read_to("a", 0) == 9
    made.take(1)
    made.add("a", 0, [], next_position=12)
    assert made.gaps() == {("a", 0): 12}
    made.add("a", 0, [SourceRecord(12, 0, None, None), SourceRecord(14, 0, None, None)], next_position=20)
    made.take(1)
    assert made.gaps() == {}


def test_bytes_are_those_of_fetches_that_still_have_records_waiting() -> None:
    made = Merger()
    made.add("a", 0, [SourceRecord(0, 0, None, None), SourceRecord(1, 1, None, None)], 2, 100)
    made.add("a", 0, [SourceRecord(2, 2, None, None)], 3, 50)
    assert made.size_bytes("a", 0) == 150
    made.take(1)
    assert made.size_bytes("a", 0) == 150
    made.take(1)
    assert made.size_bytes("a", 0) == 50
    made.take(1)
    assert made.size_bytes("a", 0) == 0 == made.size_bytes("b", 0)


def test_dropping_one_touches_no_other() -> None:
    made = merger({("a", 0): [1, 2], ("b", 0): [1]})
    made.take(1)
    made.drop("a", 0)
    assert made.gaps() == {} and len(made) == 1
    assert made.take(10) == [("b", SourceRecord(0, 1, b"b0", None))]
