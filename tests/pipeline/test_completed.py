"""What a task commits is what completed records did, with their positions: a life that is cut anywhere, and goes on from
its last commit, gives each record's effects once. Law: outputs by id, and the counts of the table, equal an uncut run's."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, Record
from pipeline.errors import ProcessorFailed
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

RECORDS = 12
SHAPES = st.sampled_from(["sync", "async", "batch", "async batch"])


class Life:
    """A task that is committed, cut and started again; `steps` are (shape, topics) of processors that each count the
    record's id in a table of their own and send it on."""

    def __init__(self, steps: list[tuple[str, str]]) -> None:
        self.steps = steps
        self.stores: dict[str, DictStore] = {}
        self.positions = {"a": 0, "b": 0}
        self.outputs: Counter[tuple[str, bytes]] = Counter()
        self.failing: set[int] = set()
        self.begun: set[int] = set()
        self.app = self._app()
        self.start()

    def _app(self) -> App:
        app = App("x", partitions=1)
        topics = {name: app.topic(name, key=str, value=int) for name in "ab"}
        joint = app.table("joint", key=str, value=int, default=int)
        for number, (shape, sources) in enumerate(self.steps):
            out = app.topic(f"out{number}", key=str, value=int)

            def one(record: Record[str, int], joint: Any, sink: Any) -> None:
                joint[record.key] += 1
                sink.send(record.key, record.value)
                if record.value in self.failing:
                    raise ValueError("asked to fail")

            def many(records: Any, joint: Any, sink: Any) -> None:
                for record in records:
                    one(record, joint, sink)

            async def one_later(record: Any, joint: Any, sink: Any) -> None:
                one(record, joint, sink)
                await self.between()
                joint[record.key] += 1

            async def many_later(records: Any, joint: Any, sink: Any) -> None:
                many(records, joint, sink)
                await self.between()

            function = {"sync": one, "async": one_later, "batch": many, "async batch": many_later}[shape]
            app.processor([topics[name] for name in sources], joint, out, batch="batch" in shape, alias={out: "sink"})(
                function
            )  # type: ignore[call-overload]
        return app

    def start(self) -> None:
        """A new process over what was committed."""
        sub = self.app.topology().subtopologies[0]
        self.stores = self.stores or {name: DictStore() for name in sub.tables}
        counts = dict.fromkeys(self.app.topology().topics, 1)
        self.process = TaskProcess(self.app, sub, 0, self.stores, counts)

    async def between(self) -> None:
        """A call under way waits: the moment for a commit."""
        await asyncio.sleep(0)

    def commit(self) -> None:
        changes = self.process.collect()
        for table, writes in changes.writes.items():
            self.stores[table].write(writes)
        self.process.mark_applied()
        for (topic, _), records in changes.outputs.items():
            self.outputs.update((topic, record.value or b"") for record in records)
        self.positions.update(changes.positions)

    def left(self) -> list[tuple[str, SourceRecord]]:
        """The records after the committed positions: even ids are in topic a, odd ones in b."""
        found = []
        for number in range(RECORDS):
            topic, offset = "ab"[number % 2], number // 2
            if offset >= self.positions[topic]:
                found.append((topic, SourceRecord(offset, number, b"k%d" % (number % 3), number.to_bytes(8, "big"))))
        return found

    async def go(self, commits: list[int], cancel: int | None) -> None:
        """Process what is left; commit when so many turns of the loop have passed; be cancelled after `cancel` of them."""
        run = asyncio.ensure_future(self.process.run_async(self.left()))
        turn = 0
        while not run.done():
            if turn in commits:
                self.commit()
            if turn == cancel:
                run.cancel()
            await asyncio.sleep(0)
            turn += 1
        with contextlib.suppress(ProcessorFailed, asyncio.CancelledError):
            await run

    def answer(self) -> tuple[Counter[tuple[str, bytes]], dict[str, dict[bytes, bytes]]]:
        return self.outputs, {name: store.data for name, store in self.stores.items()}


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(SHAPES, st.sampled_from(["a", "b", "ab"])), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 12), max_size=3),
            st.none() | st.integers(0, 12),
            st.none() | st.integers(0, RECORDS - 1),
            st.booleans(),
        ),
        max_size=4,
    ),
)
def test_a_life_cut_anywhere_gives_each_effect_once(steps: Any, lives: Any) -> None:
    topics = {topic for _, sources in steps for topic in sources}
    if len(topics) == 1:  # a task of one topic: the other one's records do not exist
        steps = [(shape, "ab") for shape, _ in steps]
    if not any(sources == "ab" for _, sources in steps):
        steps = [*steps, ("sync", "ab")]
    whole = Life(steps)
    asyncio.run(whole.go([], None))
    whole.commit()
    cut = Life(steps)
    for commits, cancel, failing, committed in lives:
        cut.failing = set() if failing is None else {failing}
        asyncio.run(cut.go(commits, cancel))
        if committed:
            cut.commit()
        cut.start()
    cut.failing = set()
    asyncio.run(cut.go([], None))
    cut.commit()
    assert cut.answer() == whole.answer()
    assert cut.positions == {"a": RECORDS // 2, "b": RECORDS // 2}


@pytest.mark.parametrize("shape", ["sync", "batch"])
def test_a_failing_call_leaves_what_was_completed_before_it(shape: str) -> None:
    life = Life([(shape, "ab")])
    life.failing = {7}
    with pytest.raises(ProcessorFailed):
        life.process.run(life.left())
    life.commit()
    assert life.positions == {"a": 4, "b": 3}
    assert sorted(int.from_bytes(value, "big") for _, value in life.outputs) == [0, 1, 2, 3, 4, 5, 6]


def test_sys_exit_in_a_processor_is_a_failure_of_its_record() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)

    @app.processor(source)
    def leave(record: Record[str, str]) -> None:
        raise SystemExit(0)

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {}, {})
    with pytest.raises(ProcessorFailed, match=r"leave failed at in-0@3 in task 0_0: SystemExit: 0"):
        process.run([("in", SourceRecord(3, 3, b"k", b"v"))])


def test_a_run_ends_after_the_record_at_which_its_time_is_over() -> None:
    life = Life([("sync", "ab")])
    times = iter(range(RECORDS))
    assert life.process.run(life.left(), lambda: next(times), 4) == 5
    life.commit()
    assert life.positions == {"a": 3, "b": 2}


def test_what_a_batch_sends_is_committed_with_its_records() -> None:
    """Also where other processors of the task read one record of another topic together."""
    life = Life([("sync", "a"), ("sync", "a"), ("batch", "b")])
    life.process.run([("b", SourceRecord(0, 0, b"k", (7).to_bytes(8, "big")))])
    changes = life.process.collect()
    assert changes.positions == {"b": 1}
    assert [output.value for outputs in changes.outputs.values() for output in outputs] == [(7).to_bytes(8, "big")]


@pytest.mark.parametrize("shape", ["batch", "async batch", "columns"])
@pytest.mark.parametrize("options", [{}, {"retries": 1, "backoff": 0.01}, {"expire": True}])
def test_a_dead_letter_out_of_a_batch_is_committed_with_its_record(shape: str, options: dict[str, Any]) -> None:
    """A record that cannot be read lies behind one whose call fails: it is read again with it, and left once."""
    app = App("x")
    source, dead = app.topic("in", key=str, value=int), app.topic("dead", key=bytes, value=bytes)
    expire = {"expire": timedelta(hours=1)} if options.pop("expire", False) else {}
    table = app.table("table", key=str, value=int, default=int, **expire)
    failing = [True]

    def many(batch: Any, table: Any) -> None:
        if failing:
            raise ConnectionError("away")

    async def many_later(batch: Any, table: Any) -> None:
        many(batch, table)

    form: dict[str, Any] = {"columns": True} if shape == "columns" else {"batch": True}
    on_error: Any = {ConnectionError: "stop", Exception: dead}
    app.processor(source, table, on_error=on_error, **form, **options)(many_later if "async" in shape else many)
    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"table": DictStore()}, {"dead": 1})
    records = [
        ("in", SourceRecord(offset, 0, b"k", value)) for offset, value in enumerate([bytes(8), b"bad", bytes(8)])
    ]

    with contextlib.suppress(ProcessorFailed):
        asyncio.run(process.run_async(records))
    changes = process.collect()
    assert (changes.positions, changes.outputs, changes.left_out) == ({}, {}, [])

    failing.clear()
    asyncio.run(process.run_async(records))
    changes = process.collect()
    assert changes.positions == {"in": 3}
    assert [output.value for output in changes.outputs["dead", 0]] == [b"bad"]
    assert changes.dead_lettered == 1
