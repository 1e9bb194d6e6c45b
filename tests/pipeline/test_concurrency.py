"""Several calls of a task at once: they count in the order of their records, each as it would alone.

Law: a life with any order of completion, cut anywhere, failing at any call, has the outputs and the tables of a life with
one call at a time; no two calls of a key overlap, and never more than N calls of a processor."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Record, Sink, Table
from pipeline.errors import DefinitionError, ProcessorFailed
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

RECORDS, KEYS = 14, 4
TURNS_MAX = 100_000


class Away(Exception):
    """A client that is down."""


class Life:
    """A task of topics a and b. `shape`: who reads them. Calls last as many turns of the loop as `lasts` says of their
    record; `failing` records raise, `away` ones raise so many times that a client is away, `flaky` ones once."""

    def __init__(self, shape: str, at_once: int, lasts: list[int], *, rests: bool = True) -> None:
        self.shape, self.at_once, self.lasts, self.rests = shape, at_once, lasts, rests
        self.stores: dict[str, DictStore] = {}
        self.positions = {"a": 0, "b": 0}
        self.outputs: list[tuple[str, int]] = []
        self.failing: set[int] = set()
        self.away: Counter[int] = Counter()
        self.flaky: set[int] = set()
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.called: list[int] = []
        self.app = self._app()
        self.start()

    def _app(self) -> App:
        app = App("x", partitions=1)
        a, b = (app.topic(name, key=str, value=int) for name in "ab")
        sums = app.table("sums", key=str, value=list[int], default=list)
        out, second = (app.topic(name, key=str, value=int) for name in ("out", "second"))
        letters = app.topic("letters", key=str, value=int)

        async def ask(record: Record[str, int], sums: Table[str, list[int]], out: Sink[str, int]) -> None:
            assert not self.under_way[record.key], "two calls of one key"
            self.under_way[record.key] += 1
            self.most = max(self.most, self.under_way.total())
            self.called.append(record.value)
            try:
                before = list(sums[record.key])
                sums[record.key] = [-1]
                out.send(record.key, record.value * 100 + len(before))
                for _ in range(self.lasts[record.value % len(self.lasts)]):
                    await asyncio.sleep(0)
                self._meet(record.value)
                sums[record.key] = [*before, record.value]
            finally:
                self.under_way[record.key] -= 1

        async def ask_too(record: Record[str, int], sums: Table[str, list[int]], second: Sink[str, int]) -> None:
            await asyncio.sleep(0)
            sums[record.key].append(-record.value)
            second.send(record.key, len(sums[record.key]))

        def note(record: Record[str, int], sums: Table[str, list[int]], second: Sink[str, int]) -> None:
            sums[record.key].append(-record.value)
            second.send(record.key, sum(map(len, sums.values())))

        on_error: Any = {Away: "wait", KeyError: letters, LookupError: "skip"}
        n: dict[str, Any] = {"concurrency": self.at_once}
        more: dict[str, Any] = {"retries": 1, "backoff": 0.001, "on_error": on_error}
        app.processor(a if self.shape in ("beside sync", "beside batch") else [a, b], sums, out, **n, **more)(ask)
        if self.shape == "two steps":
            app.processor([a, b], sums, second, **n)(ask_too)
        elif self.shape == "beside sync":
            app.processor(b, sums, second)(note)
        elif self.shape == "rekeyed":
            a.rekey("again", key=int, by=lambda record: record.value)
        return app

    def _meet(self, number: int) -> None:
        if number in self.failing:
            raise (ValueError, KeyError, IndexError)[number % 3](f"asked to fail at {number}")
        if number in self.flaky:
            self.flaky.discard(number)
            raise ValueError("once")
        if self.away[number]:
            self.away[number] -= 1
            raise Away("nobody answers")

    def start(self) -> None:
        sub = self.app.topology().subtopologies[0]
        self.stores = self.stores or {name: DictStore() for name in sub.tables}
        counts = dict.fromkeys(self.app.topology().topics, 1)
        self.process = TaskProcess(self.app, sub, 0, self.stores, counts, rests=self.rests)

    def commit(self) -> None:
        changes = self.process.collect()
        for table, writes in changes.writes.items():
            self.stores[table].write(writes)
        self.process.mark_applied()
        for (topic, _), records in changes.outputs.items():
            self.outputs += [(topic, int.from_bytes((r.value or b"")[:8], "big", signed=True)) for r in records]
        self.positions.update(changes.positions)

    def left(self) -> list[tuple[str, SourceRecord]]:
        found = []
        for number in range(RECORDS):
            topic, offset = "ab"[number % 2], number // 2
            if offset >= self.positions[topic]:
                key = b"k%d" % ((number * 7 // 3) % KEYS)
                found.append((topic, SourceRecord(offset, number, key, number.to_bytes(8, "big"))))
        return found

    async def go(self, commits: list[int], cancel: int | None, stop: int | None, given: int = RECORDS) -> None:
        """Process what is left, the first `given` records at once and the others as they are asked for; commit, be
        cancelled, or call nobody more, after so many turns of the loop."""
        turn = 0
        left = self.left()
        records, rest = left[:given], left[given:]

        def more() -> list[tuple[str, SourceRecord]]:
            taken, rest[:2] = rest[:2], []
            records.extend(taken)
            return taken

        async def to_the_end() -> None:
            left: Any = records
            while True:
                await self.process.run_async(left, lambda: float(stop is not None and turn >= stop), 1.0, more)
                if self.process.again is None:
                    return
                left = self.process.left(left)

        run = asyncio.ensure_future(to_the_end())
        while not run.done():
            if turn in commits:
                self.commit()
            if turn == cancel:
                run.cancel()
            if turn == stop:
                self.process.nudge()
            await asyncio.sleep(0)
            turn += 1
            assert turn < TURNS_MAX, "the run does not end"
        with contextlib.suppress(ProcessorFailed, asyncio.CancelledError):
            await run
        assert not self.under_way.total(), "a call goes on after its run"

    def answer(self) -> tuple[dict[str, list[int]], dict[str, dict[bytes, bytes]]]:
        by_topic: dict[str, list[int]] = {}
        for topic, value in self.outputs:
            by_topic.setdefault(topic, []).append(value)
        return by_topic, {name: store.data for name, store in self.stores.items()}


SHAPES = st.sampled_from(["one step", "two steps", "beside sync", "rekeyed"])
TURNS = st.none() | st.integers(0, 40)


@settings(deadline=None, max_examples=200)
@given(
    SHAPES,
    st.integers(2, 5),
    st.lists(st.integers(0, 9), min_size=1, max_size=RECORDS),
    st.sets(st.integers(0, RECORDS - 1).filter(lambda n: n % 3), max_size=2),
    st.sets(st.integers(0, RECORDS - 1), max_size=2),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), max_size=3),
            TURNS,
            TURNS,
            st.sets(st.integers(0, RECORDS - 1), max_size=2),
            st.booleans(),
            st.integers(1, RECORDS),
        ),
        max_size=4,
    ),
)
def test_any_order_of_completion_cut_anywhere_gives_the_answer_of_one_call_at_a_time(
    shape: str, at_once: int, lasts: list[int], left_out: set[int], flaky: set[int], lives: Any
) -> None:
    alone = Life(shape, 1, [0])
    alone.failing = set(left_out)
    asyncio.run(alone.go([], None, None))
    alone.commit()
    cut = Life(shape, at_once, lasts)
    cut.flaky = set(flaky)
    for commits, cancel, stop, failing, committed, given_first in lives:
        cut.failing = left_out | {number - number % 3 for number in failing}  # those of which the processor stops
        asyncio.run(cut.go(commits, cancel, stop, given_first))
        if committed:
            cut.commit()
        cut.start()
    cut.failing = set(left_out)
    asyncio.run(cut.go([], None, None))
    cut.commit()
    assert cut.answer() == alone.answer()
    assert cut.positions == {"a": RECORDS // 2, "b": RECORDS // 2}
    assert cut.most <= at_once


def test_calls_of_different_keys_are_under_way_at_once_and_no_more_than_asked_for() -> None:
    life = Life("one step", 3, [20])
    asyncio.run(life.go([], None, None))
    assert life.most == 3


def test_a_failing_call_lets_those_before_it_end_and_undoes_those_behind_it() -> None:
    life = Life("one step", 4, [30, 30, 30, 0])  # record 3 ends first, and fails
    life.failing = {3}
    with pytest.raises(ProcessorFailed, match="ask failed at b-0@1 in task 0_0, tried 2 times"):
        asyncio.run(life.process.run_async(life.left()))
    life.commit()
    assert life.positions == {"a": 2, "b": 1}
    assert [number // 100 for _, number in life.outputs] == [0, 1, 2]


def test_a_slow_call_holds_up_its_key_and_no_other() -> None:
    """Records go on to be asked for and called while the first one lasts; none of them counts before it."""
    life = Life("one step", 2, [400, *[0] * (RECORDS - 1)])

    async def live() -> None:
        run = asyncio.ensure_future(life.go([], None, None, given=2))
        for _ in range(200):
            await asyncio.sleep(0)
        same_key = {n for n in range(RECORDS) if (n * 7 // 3) % KEYS == 0}
        assert set(life.called) == set(range(RECORDS)) - same_key | {0}
        life.commit()
        assert life.positions == {"a": 0, "b": 0} and not life.outputs
        await run

    asyncio.run(live())
    life.commit()
    assert life.positions == {"a": RECORDS // 2, "b": RECORDS // 2}


def test_a_client_that_is_away_pauses_the_task_and_the_records_stay_in_order() -> None:
    life = Life("one step", 3, [1])
    life.away[2] = 5
    asyncio.run(life.go([], None, None))
    life.commit()
    alone = Life("one step", 1, [0])
    asyncio.run(alone.go([], None, None))
    alone.commit()
    assert life.answer() == alone.answer() and life.process.waiting is None


def test_while_the_client_is_away_one_call_at_a_time_is_tried() -> None:
    life = Life("one step", 4, [1])
    life.away = Counter(dict.fromkeys(range(RECORDS), 1_000_000))

    async def live() -> None:
        run = asyncio.ensure_future(life.process.run_async(life.left()))
        while life.process.waiting is None or life.under_way.total():  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)
        began, tried = len(life.called), 0
        while len(life.called) < began + 6:
            tried = max(tried, life.under_way.total())
            await asyncio.sleep(0)
        assert tried == 1
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run

    asyncio.run(live())
    assert not life.process.has_completed


# ---- what is refused


def app_with(**options: Any) -> tuple[App, Any, Any]:
    app = App("x", partitions=2)
    source = app.topic("in", key=str, value=int)
    return app, source, app.table("sums", key=str, value=int, default=int, **options)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "4"])
def test_concurrency_is_a_number_from_one_on(concurrency: Any) -> None:
    _, source, _ = app_with()
    with pytest.raises(DefinitionError, match=r"settle: concurrency=.* is not a whole number from 1 on"):

        @source.app.processor(source, concurrency=concurrency)
        async def settle(record: Record[str, int]) -> None: ...


@pytest.mark.parametrize("options", [{"route": lambda key: key}, {"local": True}])
def test_tables_whose_keys_are_not_the_records_are_refused(options: Any) -> None:
    app, source, sums = app_with(**options)
    with pytest.raises(DefinitionError, match=r"settle: concurrency=2 cannot have table 'sums' with (route|local)="):

        @app.processor(source, sums, concurrency=2)
        async def settle(record: Record[str, int], sums: Table[str, int]) -> None: ...


def test_sync_processors_and_batches_are_refused() -> None:
    app, source, _ = app_with()
    with pytest.raises(
        DefinitionError, match="settle: concurrency=2 is for calls that wait; declare settle with async"
    ):

        @app.processor(source, concurrency=2)
        def settle(record: Record[str, int]) -> None: ...

    with pytest.raises(DefinitionError, match="collect: concurrency=2 takes one record a call, not a batch"):

        @app.processor(source, concurrency=2, batch=True)  # type: ignore[call-overload]
        async def collect(records: Any) -> None: ...


def test_a_topic_that_another_processor_reads_one_at_a_time_is_refused() -> None:
    app, source, sums = app_with()

    @app.processor(source, concurrency=2)
    async def ask(record: Record[str, int]) -> None: ...

    @app.processor(source, sums)
    def settle(record: Record[str, int], sums: Table[str, int]) -> None: ...

    with pytest.raises(DefinitionError, match="ask has concurrency=2, but settle reads 'in' too, one record at a time"):
        app.topology()


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda sums: sums["k9"], "key 'k9' is not the record's"),
        (lambda sums: sums.update({"k9": 1}), "key 'k9' is not the record's"),
        (lambda sums: list(sums), "cannot be iterated or counted"),
        (lambda sums: len(sums), "cannot be iterated or counted"),
        (lambda sums: dict(sums.range()), "cannot be iterated or counted"),
    ],
)
def test_a_call_has_the_key_of_its_record_and_no_other(use: Any, told: str) -> None:
    app = App("x", partitions=1)
    source = app.topic("in", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int)

    @app.processor(source, sums, concurrency=2)
    async def settle(record: Record[str, int], sums: Table[str, int]) -> None:
        use(sums)

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": DictStore()}, {})
    with pytest.raises(ProcessorFailed, match=rf"settle failed at in-0@0 .*{told}"):
        asyncio.run(process.run_async([("in", SourceRecord(0, 0, b"k1", (1).to_bytes(8, "big")))]))
