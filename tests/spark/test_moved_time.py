"""Windows, timers and joins with more tasks: what was open goes on where its key is, and the answer is that of an app that had the
tasks from the beginning."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App
from orchestrator.errors import RefusedBySafety
from orchestrator.testing import Driver
from pipeline.definitions.join import JoinDef
from pipeline.spark import moves, time_passed
from pipeline.spark.task_times import TaskTimes
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time import join_view
from pipeline.time.position import BEFORE_DUE
from pipeline.values.partitioner import partition_of
from tests.often import often
from tests.spark.more_tasks import Moved
from tests.time import kept, market, watch
from tests.time.drawn import Beat, drawn
from tests.time.one_answer import by_key, module_of

OFFSET_BYTES = 8
RECORDS = 160
COUNTS = [(2, 3), (2, 4), (4, 6), (3, 8)]


def halves(records: list[Beat], *, in_order: bool) -> tuple[list[Beat], list[Beat]]:
    """Before and after the move; what comes after is in order, and later than what came."""
    middle = len(records) // 2
    first, later = records[:middle], records[middle:]
    if in_order:
        first = sorted(first, key=at_ms_of)
    since = max(map(at_ms_of, first)) + 1  # at one time the topics' records would come in another order
    return first, sorted((beat._replace(at_ms=max(beat.at_ms, since)) for beat in later), key=at_ms_of)


def seeds(first: int, quick: int, count: int) -> list[Any]:
    """The rest of them in the long runs."""
    return often(range(first, first + count), *range(first, first + quick))


def at_ms_of(beat: Beat) -> int:
    return beat.at_ms


def feed(driver: Driver, records: list[Beat]) -> None:
    with driver.together():
        for topic, key, value, at_ms in records:
            driver.send(driver.app.topics[topic], key, value, timestamp_ms=at_ms)


def answer(driver: Driver, module: Any) -> Any:
    """What is sent by key, in order, and tables; what lies behind the re-key goes by the order of arrival there."""
    tables = {name: driver.table(module.__dict__[name]) for name in ("group_counts", "group_settled")}
    return by_key(driver.items(module.out)), tables


def module_with(text: str, partitions: int) -> Any:
    return module_of(text.replace("partitions=2", f"partitions={partitions}"))


def fed(app: Any, partitions: int, records: list[Beat]) -> Driver:
    with Driver(app, partitions=partitions) as driver:
        feed(driver, records)
    return driver


def state(driver: Driver) -> dict[str, Any]:
    """What each key has in every table, whatever task it is in: rows, due times, open and retained windows; records of joins and
    old versions by what is stored of them, but for offsets."""
    found: dict[str, Any] = {}
    for name, table in driver.app.tables.items():
        stores = [stores[name] for stores in driver._stores.values() if name in stores]
        if isinstance(table, JoinDef):
            keys = [key for store in stores for key in store.data if key != STREAM_TIME_KEY]
            found[name] = Counter((key[:-OFFSET_BYTES], join_view.key_of(key)) for key in keys)
        else:
            found[name] = driver.table(table)
            entries = [key for store in stores for key in store.data if key != STREAM_TIME_KEY]
            found[f"{name}, entries"] = sorted(entries)
    return found


# ---------------------------------------------------------------- random apps


@pytest.mark.parametrize("seed", seeds(0, 8, 60))
def test_a_random_app_answers_as_if_it_had_had_the_tasks_from_the_beginning(seed: int) -> None:
    app, (before, to) = drawn(seed, RECORDS), COUNTS[seed % 4]
    module = module_with(app.text, before)
    first, later = halves(app.records, in_order=True)
    with Moved(fed(module.app, before, first), to) as other:
        feed(other, later)
        assert answer(other, module) == answer(fed(module.app, to, [*first, *later]), module), app.text


@pytest.mark.parametrize("seed", seeds(100, 4, 40))
def test_after_disorder_it_answers_as_if_it_had_not_moved(seed: int) -> None:
    """Twice, and with records that were late for tasks of the old count."""
    app, (before, to) = drawn(seed, RECORDS), COUNTS[seed % 4]
    module = module_with(app.text, before)
    first, rest = halves(app.records, in_order=False)
    later, last = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    last = [beat._replace(at_ms=max(beat.at_ms, later[-1].at_ms + 1)) for beat in last]
    with Moved(fed(module.app, before, first), to) as other:
        feed(other, later)
    with Moved(other, 2 * to - 1) as third:
        feed(third, last)
        assert answer(third, module) == answer(fed(module.app, before, [*first, *later, *last]), module), app.text


@pytest.mark.parametrize("seed", seeds(200, 4, 20))
def test_every_entry_is_there_before_and_after(seed: int) -> None:
    """With a multiple nothing comes due; else what does is what the old tasks would have called, come to that time."""
    app, (before, to) = drawn(seed, RECORDS), COUNTS[seed % 4]
    module = module_with(app.text, before)
    first, _ = halves(app.records, in_order=False)
    driver = fed(module.app, before, first)
    with Moved(driver, to) as other:
        if to % before == 0:
            assert not other.due and not other.times.forward()
        for number, partition in other.passing:
            goal, task = other.times.goal((number, partition)), f"{number}_{partition}"
            assert goal is not None
            asyncio.run(driver._advance_task(task, driver._tasks[task], goal[0]))
        assert state(other) == state(driver), app.text
        for (number, partition), reached in other.times.reached.items():
            assert other._tasks[f"{number}_{partition}"].stream_time_ms >= reached[0]


@pytest.mark.parametrize("seed", [200, 202])
def test_it_is_the_same_in_small_pieces_and_with_tables_on_disk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    app, (before, to) = drawn(seed, RECORDS), COUNTS[seed % 4]
    driver = fed(module_with(app.text, before).app, before, halves(app.records, in_order=False)[0])
    with Moved(driver, to) as other:
        expected = {kind: sorted(map(str, rows)) for kind, rows in other.rows.items()}, other._moved
        assert other.passing
    monkeypatch.setattr(time_passed, "MEMORY_BYTES", 1)
    monkeypatch.setattr(time_passed, "CHUNK", 3)
    monkeypatch.setattr(moves, "PIECE_ROWS", 1)
    with Moved(driver, to) as other:
        assert ({kind: sorted(map(str, rows)) for kind, rows in other.rows.items()}, other._moved) == expected


# ---------------------------------------------------------------- joins of tables, and time that is not alike


def test_joins_of_tables_and_by_foreign_keys_go_on(seed: int = 5) -> None:
    """Subscriptions lie by the foreign key, and what answers them by the key of the row."""
    chance, app = random.Random(seed), market.app
    people, sellers = [f"p{n}" for n in range(12)], [f"c{n}" for n in range(5)]
    sends: list[tuple[Any, str, Any]] = []
    for number in range(300):
        topic = chance.choice([market.orders, market.customers, market.payments, market.people])
        value = {
            market.orders: (chance.choice([None, *sellers]), number),
            market.customers: f"name {number}",
            market.payments: chance.randrange(3),
            market.people: chance.choice(["", *people]),
        }[topic]
        gone = chance.random() < 0.15 and topic is not market.payments
        sends.append((topic, chance.choice(sellers if topic is market.customers else people), None if gone else value))

    def results(driver: Driver) -> dict[str, Any]:
        outs = (market.enriched, market.settled, market.chiefs)
        return {topic.name: dict(driver.items(topic)) for topic in outs} | {"paid": driver.table(market.paid)}

    with Driver(app, partitions=2) as driver:
        for one in sends[:150]:
            driver.send(*one)
    with Moved(driver, 5) as other, Driver(app, partitions=5) as expected:
        assert other.rows["moved"] and not other.due
        for one in sends[150:]:
            other.send(*one)
        for one in sends:
            expected.send(*one)
        assert results(other) == results(expected)
        assert {key for key, value in results(other)["enriched"].items() if value is None}  # some were taken back


def test_versions_and_windows_that_are_retained_can_be_read_where_their_key_is() -> None:
    with Driver(kept.app, partitions=2) as driver:
        for number in range(60):
            for topic in (kept.rates, kept.beats):
                driver.send(topic, f"k{number % 7}", number, timestamp_ms=10 * number)
    with Moved(driver, 3) as other, Driver(kept.app, partitions=3) as expected:
        for number in range(60):
            for topic in (kept.rates, kept.beats):
                expected.send(topic, f"k{number % 7}", number, timestamp_ms=10 * number)
        for one in (other, expected):
            one.send(kept.beats, "k3", 5, timestamp_ms=610)  # in a window of before, and with a rate of before
            one.advance(5_000)
        assert by_key(other.items(kept.out)) == by_key(expected.items(kept.out))
        for table in (kept.hourly, kept.rolling, kept.near, kept.visits, kept.rate_of):
            assert other.table(table) == expected.table(table) != {}, table.name


def of_task(task: int, count: int) -> str:
    return next(key for key in (f"k{n}" for n in range(100)) if partition_of(key.encode(), count) == task)


def test_a_task_that_is_behind_comes_to_the_time_of_those_that_it_meets() -> None:
    """What that closes is called there, once; a record of the time between is late from then on, as it is in an app in which the
    keys had shared a task, and is not where no tasks meet."""
    slow, fast = of_task(0, 2), of_task(1, 2)
    outs = {}
    for to in (3, 4):
        with Driver(watch.app, partitions=2) as driver:
            driver.send(watch.beats, slow, 1, timestamp_ms=40)
            driver.send(watch.beats, fast, 1, timestamp_ms=140)
            driver.send(watch.beats, fast, 1, timestamp_ms=1_000)
        with Moved(driver, to) as other:
            outs[to] = [value for key, value in other.items(watch.out) if key == slow]
            other.send(watch.beats, slow, 7, timestamp_ms=45)
            other.send(watch.beats, slow, 1, timestamp_ms=2_000)
            late = other.late(watch.sums)
            all_of_it = [value for key, value in other.items(watch.out) if key == slow]
        if to == 3:
            assert other.due == {f"watch-{name}-changelog": 1 for name in ("sums", "visits", "silent", "match-join")}
            assert late == 1 and all_of_it.count("0-100: 1") == 1 and "0-100: 8" not in all_of_it
        else:
            assert not other.due and late == 0 and "0-100: 8" in all_of_it and "0-100: 1" not in all_of_it
    assert "0-100: 1" in outs[3] and outs[4] == []


def test_records_that_have_moved_match_before_those_of_their_time() -> None:
    """Their offsets lie below those of the partition that they come to; a record there with the old offset is another one."""
    chosen = next(
        key for key in (f"k{n}" for n in range(100)) if partition_of(key.encode(), 2) != partition_of(key.encode(), 3)
    )
    with Driver(watch.app, partitions=2) as driver:
        for value in (1, 2):
            driver.send(watch.beats, chosen, value, timestamp_ms=10)
    with Moved(driver, 3) as other:
        assert other._ends.get(("beats", partition_of(chosen.encode(), 3)), 0) == 0
        for value in (3, 4):
            other.send(watch.beats, chosen, value, timestamp_ms=10)
        other.send(watch.ships, chosen, 9, timestamp_ms=11)
        pairs = [value for _, value in other.items(watch.out) if value.startswith("pair")]
        assert pairs == [f"pair {n} 9" for n in (1, 2, 3, 4)]


# ---------------------------------------------------------------- the times of tasks


def test_which_tasks_meet() -> None:
    ahead, behind = (100, BEFORE_DUE, b""), (40, BEFORE_DUE, b"")
    reached = {(0, 0): ahead, (0, 1): behind, (0, 2): behind, (1, 0): behind}
    times = TaskTimes(4, 6, reached)  # even ones meet even ones
    assert times.forward() == {(0, 2): 60} and times.goal((0, 4)) == ahead and times.goal((0, 5)) == behind
    assert times.goal((1, 3)) is None and times.goal((1, 2)) == behind
    assert TaskTimes(4, 8, reached).forward() == {} and TaskTimes(4, 8, reached).goal((0, 4)) == ahead
    half = (100, 2, b"key")  # not all that is due at 100 has happened there
    times = TaskTimes(2, 3, {(0, 0): half, (0, 1): behind})
    assert times.goal((0, 2)) == (101, BEFORE_DUE, b"") and times.forward() == {(0, 0): 1, (0, 1): 61}
    assert TaskTimes(2, 4, {(0, 0): half, (0, 1): behind}).goal((0, 2)) == half
    times.refuse_far("bank", 61)
    with pytest.raises(RefusedBySafety, match=r"task 0_1 of 'bank' is at 40 ms .* --to 4, .* --forward 1s"):
        times.refuse_far("bank", 60)


def test_what_expires_and_what_has_a_route_lies_where_its_key_does() -> None:
    app = App("routes", partitions=2)
    orders = app.topic("orders", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    last = app.table("last", key=tuple[str, int], value=int, route=lambda key: key[0], expire=timedelta(seconds=1))
    silent = app.timers("silent", key=tuple[str, int], route=lambda key: key[0])

    @app.processor(orders, last, silent, out)
    def order(order: Any, last: Any, silent: Any, out: Any) -> None:
        out.send(order.key, f"{order.value} {sorted(last.prefix((order.key,)))}")
        last[order.key, order.value % 3] = order.value
        silent[order.key, order.value % 3] = order.timestamp_ms + 700

    @app.when_due(silent, last, out)
    def gone(due: Any, last: Any, out: Any) -> None:
        out.send(due.key[0], f"gone {due.key[1]} {last.get(due.key)}")

    def play(driver: Driver, numbers: range) -> None:
        for number in numbers:
            driver.send(orders, f"k{number % 7}", number, timestamp_ms=40 * number)

    for to in (3, 4):
        with Driver(app, partitions=2) as driver:
            play(driver, range(60))
        with Moved(driver, to) as other, Driver(app, partitions=to) as expected:
            play(other, range(60, 120))
            play(expected, range(120))
            assert by_key(other.items(out)) == by_key(expected.items(out))
            assert other.table(silent) == expected.table(silent) != {}
            for process in other._tasks.values():
                assert process.stream_time_ms >= 40 * 54  # none has fallen back to a time before all
