"""Calls are atomic, errors go where on_error says, batches and async give the same answer, a failing store is told."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import App, PipelineError, ProcessorFailed, Record, Sink, Table
from orchestrator.testing import Driver
from pipeline.errors import DecodingFailed, DefinitionError, text_of
from pipeline.process import Changes, TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore


class Step(msgspec.Struct):
    """What the processor of these tests does with one record, in order; "fail" raises in the middle."""

    deeds: list[tuple[str, str, int]]


def machine(on_error: Any = "skip", *, batch: bool = False, is_async: bool = False) -> App:
    """An app whose processor does what its records say, to two tables and a sink."""
    app = App("m", on_error=on_error)
    source = app.topic("in", key=str, value=Step)
    app.topic("dead", key=bytes, value=bytes)
    counts = app.table("counts", key=str, value=int, default=int)
    lists = app.table("lists", key=str, value=list[int], default=list)
    out = app.topic("out", key=str, value=int)

    def do(record: Record[str, Step], counts: Any, lists: Any, out: Any) -> None:
        for deed, key, number in record.value.deeds:
            if deed == "fail":
                raise ValueError(f"asked to fail {number}")
            if deed == "count":
                counts[key] += number
            elif deed == "append":
                lists[key].append(number)
            elif deed == "drop":
                counts.pop(key, None)
                lists.pop(key, None)
            else:
                out.send(key, number + counts[key] + len(lists.get(key, [])))

    def do_batch(records: Any, counts: Any, lists: Any, out: Any) -> None:
        for record in records:
            do(record, counts, lists, out)

    async def do_async(record: Any, counts: Any, lists: Any, out: Any) -> None:
        await asyncio.sleep(0)
        do(record, counts, lists, out)

    function: Any = do_async if is_async else do_batch if batch else do
    app.processor(source, counts, lists, out, batch=batch)(function)  # type: ignore[call-overload]
    return app


DEEDS = st.tuples(
    st.sampled_from(["count", "append", "drop", "send", "send", "fail"]), st.sampled_from("ab"), st.integers(0, 3)
)
INPUTS = st.lists(st.lists(DEEDS, max_size=5), max_size=10)


def raw(deeds: Iterable[Sequence[Any]]) -> list[tuple[str, SourceRecord]]:
    return [("in", SourceRecord(n, n, b"k", msgspec.json.encode(Step(deed)))) for n, deed in enumerate(deeds)]  # type: ignore[arg-type]


class Running:
    """A task with stores, fed in pieces."""

    def __init__(self, app: App) -> None:
        sub = app.topology().subtopologies[0]
        self.stores = {name: DictStore() for name in sub.tables}
        self.process = TaskProcess(app, sub, 0, self.stores, {"out": 3, "dead": 2})
        self.outputs: list[Any] = []
        self.skipped = 0

    def feed(self, records: Sequence[tuple[str, SourceRecord]]) -> None:
        if self.process.needs_async:
            asyncio.run(self.process.run_async(records))
        else:
            self.process.run(records)

    def commit(self) -> Changes:
        changes = self.process.collect()
        for table, written in changes.writes.items():
            self.stores[table].write(written)
        self.process.mark_applied()
        for where, records in sorted(changes.outputs.items()):
            self.outputs += [(where, record) for record in records]
        self.skipped += changes.skipped
        return changes

    def answer(self) -> Any:
        return {name: store.data for name, store in self.stores.items()}, sorted(self.outputs, key=repr), self.skipped


def by_hand(deeds: Iterable[Sequence[Any]]) -> tuple[dict[str, int], dict[str, list[int]], list[tuple[str, int]], int]:
    """The plain meaning: each record wholly or not at all."""
    counts: dict[str, int] = {}
    lists: dict[str, list[int]] = {}
    out: list[tuple[str, int]] = []
    skipped = 0
    for record in deeds:
        c, xs, sent = dict(counts), {key: list(value) for key, value in lists.items()}, list(out)
        for deed, key, number in record:
            if deed == "fail":
                skipped += 1
                break
            if deed == "count":
                c[key] = c.get(key, 0) + number
            elif deed == "append":
                xs.setdefault(key, []).append(number)
            elif deed == "drop":
                c.pop(key, None)
                xs.pop(key, None)
            else:
                sent.append((key, number + c.get(key, 0) + len(xs.get(key, []))))
        else:
            counts, lists, out = c, xs, sent
    return counts, lists, out, skipped


@given(INPUTS)
def test_a_call_counts_wholly_or_not_at_all(deeds: Any) -> None:
    app = machine()
    with Driver(app) as driver:
        for number, record in enumerate(deeds):
            driver.send(app.topics["in"], "k", Step(record), timestamp_ms=number)
        counts, lists, out, _ = by_hand(deeds)
        assert driver.table(app.tables["counts"]) == counts
        assert driver.table(app.tables["lists"]) == lists
        assert driver.items(app.topics["out"]) == out


@settings(deadline=None)
@given(INPUTS, st.lists(st.integers(0, 4), max_size=10), st.sampled_from(["plain", "batch", "async"]))
def test_random_cuts_give_one_answer(deeds: Any, cuts: list[int], shape: str) -> None:
    whole = Running(machine())
    whole.feed(raw(deeds))
    whole.commit()
    cut = Running(machine(batch=shape == "batch", is_async=shape == "async"))
    records = raw(deeds)
    for size in [*cuts, len(records)]:
        piece, records = records[:size], records[size:]
        cut.feed(piece)
        if size % 2:  # not every piece is committed by itself
            cut.commit()
    cut.commit()
    assert cut.answer() == whole.answer()


def test_taken_writes_stay_visible_until_settled() -> None:
    running = Running(machine())
    running.feed(raw([[("count", "a", 2)]]))
    first = running.process.collect()
    running.feed(raw([[("count", "a", 3), ("send", "a", 0)]]))
    second = running.process.collect()
    assert first.writes["counts"] == {b"a": (2).to_bytes(8, "big")}
    assert second.writes["counts"] == {b"a": (5).to_bytes(8, "big")}
    assert [record.value for [record] in second.outputs.values()] == [(5).to_bytes(8, "big")]
    running.stores["counts"].write(first.writes["counts"])
    running.process.mark_applied()
    running.feed(raw([[("count", "a", 1)]]))
    assert running.process.collect().writes["counts"] == {b"a": (6).to_bytes(8, "big")}


def test_changes_say_what_was_done() -> None:
    running = Running(machine())
    running.feed(raw([[("count", "a", 1)], [("fail", "", 0)], [("count", "a", 1)]]))
    changes = running.process.collect()
    assert (changes.records_in, changes.skipped, changes.dead_lettered, changes.stream_time_ms) == (3, 1, 0, 2)
    assert changes.write_timestamp_ms == {"counts": 2}
    assert running.process.finished == 3
    again = running.process.collect()
    assert (again.records_in, again.outputs, again.writes) == (0, {}, {})


@pytest.mark.parametrize("shape", [{}, {"batch": True}, {"is_async": True}])
def test_stop_names_record_task_processor_and_shows_the_users_frames(shape: Any) -> None:
    running = Running(machine("stop", **shape))
    with pytest.raises(
        ProcessorFailed, match=r"do\w* failed at in-0@1 in task 0_0: ValueError: asked to fail 7"
    ) as raised:
        running.feed(raw([[("count", "a", 1)], [("count", "a", 10), ("fail", "", 7)], [("count", "a", 100)]]))
    error = raised.value
    assert (error.task, error.topic, error.partition, error.offset, error.record) == ("0_0", "in", 0, 1, "in-0@1")
    assert "asked to fail" in error.frames and "test_process.py" in error.frames
    assert "pipeline/process.py" not in error.frames and "pipeline/calls/steps.py" not in error.frames
    assert isinstance(error.__cause__, ValueError)
    first = error.__cause__.__traceback__
    assert first is not None and first.tb_frame.f_code.co_filename == __file__
    error.add_note("seen")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.frames, again.record) == (type(error), str(error), error.frames, "in-0@1")
    assert running.process.collect().writes["counts"] == {b"a": (1).to_bytes(8, "big")}


@pytest.mark.parametrize("batch", [False, True])
def test_a_dead_letter_keeps_everything_and_adds_headers(batch: bool) -> None:
    running = Running(machine("dead", batch=batch))
    bad = SourceRecord(5, 77, b"k", msgspec.json.encode(Step([("fail", "", 3)])), (("mine", b"1"),))
    good = SourceRecord(6, 78, b"k", msgspec.json.encode(Step([("count", "a", 3)])))
    running.feed([("in", bad), ("in", good)])
    changes = running.commit()
    [((topic, _), [letter])] = changes.outputs.items()
    assert topic == "dead" and changes.dead_lettered == 1
    assert (letter.key, letter.value, letter.timestamp_ms) == (bad.key, bad.value, 77)
    headers = dict(letter.headers)
    assert headers.pop("mine") == b"1" and letter.headers[0] == ("mine", b"1")
    assert headers.pop("error-where").startswith(b"test_process.py:")
    assert headers == {
        "error-topic": b"in",
        "error-partition": b"0",
        "error-offset": b"5",
        "error-task": b"0_0",
        "error-processor": b"do_batch" if batch else b"do",
        "error-type": b"ValueError",
        "error-message": b"asked to fail 3",
    }
    assert changes.writes == {"counts": {b"a": (3).to_bytes(8, "big")}}


@pytest.mark.parametrize("data", [b"not json", b'{"deeds": [["count", "a", "three"]]}', b"\xff"])
def test_on_error_covers_decoding(data: bytes) -> None:
    bad = [("in", SourceRecord(4, 0, b"k", data))]
    running = Running(machine("stop"))
    with pytest.raises(DecodingFailed, match="do cannot read in-0@4 in task 0_0"):
        running.feed(bad)
    for policy in ("skip", "dead"):
        for batch in (False, True):
            running = Running(machine(policy, batch=batch))
            running.feed(bad)
            changes = running.process.collect()
            assert (changes.skipped, changes.dead_lettered) == ((1, 0) if policy == "skip" else (0, 1))


def test_the_nearer_on_error_wins() -> None:
    app = App("x", on_error="stop")
    source = app.topic("in", key=str, value=str)
    dead = app.topic("dead", key=str, value=str)

    @app.processor(source, on_error="skip")
    def one(record: Record[str, str]) -> None:
        raise ValueError("one")

    @app.processor(source, on_error=dead)
    def two(record: Record[str, str]) -> None:
        raise ValueError("two")

    with Driver(app) as driver:
        driver.send(source, "a", "b")
        assert driver.items(dead) == [("a", "b")]
        app.processor(source)(three)
    with Driver(app) as driver, pytest.raises(ProcessorFailed, match="three failed"):
        driver.send(source, "a", "b")


def three(record: Record[str, str]) -> None:
    raise ValueError("three")


def test_on_error_must_be_known() -> None:
    app = App("x", on_error="skpi")
    source = app.topic("in", key=str, value=str)
    app.processor(source)(three)
    with pytest.raises(DefinitionError, match="on_error='skpi'"):
        app.topology()
    with pytest.raises(DefinitionError, match="on_error=5"):
        app.processor(source, on_error=5)(three)  # type: ignore[call-overload]
    other = App("y").topic("dead", key=str, value=str)
    with pytest.raises(DefinitionError, match="belongs to app 'y'"):
        app.processor(source, on_error=other)(three)


class Broken(DictStore):
    def get(self, key: bytes) -> bytes | None:
        raise OSError("the disk is gone")


def test_a_store_that_fails_is_no_fault_of_the_record() -> None:
    """Neither on_error nor an `except Exception` of the user's may hide it."""
    app = App("x", on_error="skip")
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, default=int)

    @app.processor(source, table)
    def hide(record: Record[str, str], t: Table[str, int]) -> None:
        try:
            t["a"] += 1
        except Exception:  # noqa: BLE001
            return

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": Broken()}, {})
    with pytest.raises(OSError, match="the disk is gone"):
        process.run([("in", SourceRecord(0, 0, b"a", b""))])


def test_sends_carry_the_records_time_unless_given() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    out = app.topic("out", key=str, value=str)

    @app.processor(source, out)
    def send(record: Record[str, str], out: Sink[str, str]) -> None:
        out.send("a", "x", headers=[("h", b"1")])
        out.send("a", None, timestamp_ms=9)
        out.send(None, "keyless")

    with Driver(app) as driver:
        driver.send(source, "k", "v", timestamp_ms=42)
        first, second, third = driver.records(out)
    assert (first.timestamp_ms, first.headers, first.value) == (42, (("h", b"1"),), "x")
    assert (second.timestamp_ms, second.value, second.offset) == (9, None, 1)
    assert third.key is None


@pytest.mark.parametrize(
    "arguments",
    [
        (1, "x", {}),
        ("a", 5, {}),
        ("a", "x", {"timestamp_ms": -1}),
        ("a", "x", {"timestamp_ms": 1 << 63}),
        ("a", "x", {"headers": [("h", "x")]}),
        ("a", "x", {"headers": [("\ud800", b"x")]}),
    ],
)
def test_what_cannot_be_sent_fails_the_call(arguments: Any) -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    key, value, options = arguments

    @app.processor(source, out)
    def send(record: Record[str, str], out: Sink[str, str]) -> None:
        out.send(key, value, **options)

    with Driver(app) as driver, pytest.raises(ProcessorFailed, match="topic 'out'"):
        driver.send(source, "k", "v")


def test_a_group_of_errors_says_which() -> None:
    """`unhandled errors in a TaskGroup (1 sub-exception)` was all that a dead letter, or the log, said."""
    app = App("x", on_error="letters")
    source = app.topic("in", key=str, value=str)
    letters = app.topic("letters", key=str, value=str)

    @app.processor(source)
    async def fail(record: Record[str, str]) -> None:
        async def one() -> None:
            raise ConnectionError("the service is down")

        async with asyncio.TaskGroup() as group:
            group.create_task(one())

    with Driver(app) as driver:
        driver.send(source, "k", "v")
        [letter] = driver.records(letters)
    said = dict(letter.headers)["error-message"].decode()
    assert said == "unhandled errors in a TaskGroup (1 sub-exception): ConnectionError: the service is down"
    many = ExceptionGroup("all", [ValueError(number) for number in range(5)])
    assert text_of(many) == "all (5 sub-exceptions): ValueError: 0; ValueError: 1; ValueError: 2; 2 more"


@pytest.mark.parametrize("is_read", [True, False])
def test_an_error_as_long_as_a_record_is_shortened(is_read: bool) -> None:
    """A halt keeps it in the log: one that is larger than a record may be ended the fleet, which was to go on without that task."""

    class Strict:
        def encode(self, value: str) -> bytes:
            return value.encode()

        def decode(self, data: bytes) -> str:
            if not is_read:
                raise ValueError(f"no value: {data.decode()}")
            return data.decode()

    app = App("x")
    source = app.topic("in", key=str, value=Strict())

    @app.processor(source)
    def fail(record: Record[str, str]) -> None:
        raise ValueError(f"not {record.value}")

    with Driver(app) as driver, pytest.raises(ProcessorFailed) as found:
        driver.send(source, "k", "x" * 2_000_000)
    assert len(str(found.value)) < 11_000 and "xxx ... (1990" in str(found.value)
    assert "; correct the " in str(found.value)


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("on_error", ["stop", "letters"])
def test_an_error_whose_text_cannot_be_read_is_one_as_any_other(on_error: str) -> None:
    app = App("x", on_error=on_error)
    source = app.topic("in", key=str, value=str)
    letters = app.topic("letters", key=str, value=str)

    @app.processor(source)
    def fail(record: Record[str, str]) -> None:
        raise Unsayable

    with Driver(app) as driver:
        if on_error == "stop":
            with pytest.raises(
                ProcessorFailed, match="Unsayable: its text cannot be read: __str__ raised RuntimeError"
            ):
                driver.send(source, "a", "v")
        else:
            driver.send(source, "a", "v")
            assert b"RuntimeError" in dict(driver.records(letters)[0].headers)["error-message"]


def test_a_fake_sink_keeps_a_value_as_it_was_sent() -> None:
    out = App("x").topic("out", key=str, value=list[int]).fake()
    value = [1]
    out.send("a", value)
    value.append(2)
    out.send("a", value)
    assert out == [("a", [1]), ("a", [1, 2])] and [record.value for record in out.records] == [[1], [1, 2]]


def test_a_tombstone_comes_as_none() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=int)
    seen: list[Any] = []

    @app.processor(source)
    def look(record: Record[str, int]) -> None:
        seen.append((record.key, record.value))

    with Driver(app) as driver:
        driver.send(source, "k", None)
        driver.send(source, None, 3)
    assert seen == [("k", None), (None, 3)]


def test_sync_code_that_returns_something_to_await_is_told() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)

    async def later() -> None: ...

    @app.processor(source)
    def forgot(record: Record[str, str]) -> Any:
        return later()

    with Driver(app) as driver, pytest.raises(ProcessorFailed, match="declare it with async def"):
        driver.send(source, "k", "v")


# async


def test_calls_of_one_task_never_overlap() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, default=int)
    running: list[str] = []

    @app.processor(source, table)
    async def wait(record: Record[str, str], t: Table[str, int]) -> None:
        assert not running
        running.append(record.key)
        t["n"] += 1
        await asyncio.sleep(0)
        running.pop()

    with Driver(app) as driver:
        with driver.together():
            for key in "abc":
                driver.send(source, key, "")
        assert driver.table(table) == {"n": 3}


def test_a_call_that_hangs_past_its_timeout_fails() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, default=int)

    @app.processor(source, table, timeout=0.01)
    async def hang(record: Record[str, str], t: Table[str, int]) -> None:
        t["n"] += 1
        await asyncio.Event().wait()

    with Driver(app) as driver:
        with pytest.raises(ProcessorFailed, match=r"hang did not end within its timeout of 0.01 s"):
            driver.send(source, "k", "v")
        assert driver.table(table) == {}


async def test_a_cancelled_run_has_undone_the_call_it_was_in() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, default=int)
    reached = asyncio.Event()

    @app.processor(source, table)
    async def hang(record: Record[str, str], t: Table[str, int]) -> None:
        t[record.key] += 1
        if record.key == "b":
            reached.set()
            await asyncio.Event().wait()

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": DictStore()}, {})
    records = [("in", SourceRecord(n, n, key, b"")) for n, key in enumerate([b"a", b"b", b"c"])]
    run = asyncio.ensure_future(process.run_async(records))
    await asyncio.wait_for(reached.wait(), 10)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert process.finished == 1
    assert process.collect().writes == {"t": {b"a": (1).to_bytes(8, "big")}}
    assert await process.run_async(records[2:]) == 1
    assert process.collect().writes == {"t": {b"c": (1).to_bytes(8, "big")}}, "nothing of it is left for the next call"


async def test_what_is_completed_is_there_while_the_next_call_waits() -> None:
    """A commit may come then: it has the records before, and nothing of the call."""
    app = App("x")
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, default=int)
    out = app.topic("out", key=str, value=int)
    waits, go = asyncio.Event(), asyncio.Event()

    @app.processor(source, table, out)
    async def wait(record: Record[str, str], t: Table[str, int], out: Sink[str, int]) -> None:
        t[record.key] += 1
        out.send(record.key, t[record.key])
        if record.offset == 2:
            waits.set()
            await go.wait()
            t[record.key] += 10

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": DictStore()}, {"out": 1})
    records = [("in", SourceRecord(n, n, b"k", b"")) for n in range(4)]
    run = asyncio.ensure_future(process.run_async(records))
    await asyncio.wait_for(waits.wait(), 10)
    assert process.finished == 2
    first = process.collect()
    assert first.positions == {"in": 2} and first.writes == {"t": {b"k": (2).to_bytes(8, "big")}}
    assert len(first.outputs["out", 0]) == 2
    process.mark_applied()
    go.set()
    assert await run == 4
    then = process.collect()
    assert then.positions == {"in": 4} and then.writes == {"t": {b"k": (14).to_bytes(8, "big")}}


async def test_a_task_left_behind_by_a_call_cannot_write_after_it() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    table = app.table("t", key=str, value=int, default=int)
    go, errors = asyncio.Event(), list[str]()
    left: list[asyncio.Task[None]] = []

    @app.processor(source, table)
    async def leave(record: Record[str, str], t: Table[str, int]) -> None:
        async def later() -> None:
            await go.wait()
            try:
                t[record.key] = 7
            except PipelineError as error:
                errors.append(str(error))

        left.append(asyncio.ensure_future(later()))
        await asyncio.sleep(0)

    process = TaskProcess(app, app.topology().subtopologies[0], 0, {"t": DictStore()}, {})
    assert await process.run_async([("in", SourceRecord(0, 0, b"k", b""))]) == 1
    go.set()
    await asyncio.wait_for(left[0], 10)
    assert errors == ["table 't' was used after the call it was given to had ended"]
    assert process.collect().writes == {}


def test_async_apps_are_not_run_by_run() -> None:
    process = Running(machine(is_async=True)).process
    with pytest.raises(PipelineError, match="use run_async"):
        process.run([])


def test_a_batch_that_fails_is_called_whole_once_and_then_one_by_one() -> None:
    app = App("batches", partitions=1)
    events = app.topic("events", key=str, value=int)
    seen = app.table("seen", key=str, value=int, default=int)
    calls: list[list[int]] = []

    @app.processor(events, seen, batch=True, on_error="skip")
    def see(events: Sequence[Record[str, int]], seen: Table[str, int]) -> None:
        calls.append([event.value for event in events])
        for event in events:
            seen[event.key] += event.value
            if event.value == 2:
                raise ValueError("two")

    with Driver(app) as driver:
        with driver.together():
            for number in range(4):
                driver.send(events, "k", number, timestamp_ms=number)
        assert calls == [[0, 1, 2, 3], [0], [1], [2], [3]]
        assert driver.table(seen) == {"k": 4}
        driver.send(events, "k", 2, timestamp_ms=9)
    assert calls[5:] == [[2]], "one alone is not tried again"


def test_batch_gets_the_records_in_order() -> None:
    app = App("x")
    first, second = app.topic("a", key=str, value=int), app.topic("b", key=str, value=int)
    seen: list[list[int]] = []

    @app.processor([first, second], batch=True)
    def look(records: Sequence[Record[str, int]]) -> None:
        seen.append([record.value for record in records])

    with Driver(app) as driver, driver.together():
        for topic, number, time in ((first, 1, 10), (second, 2, 5), (first, 3, 20), (second, 4, 20), (second, 5, 30)):
            driver.send(topic, "k", number, timestamp_ms=time)
    assert seen == [[2, 1, 3, 4, 5]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=12),
    st.lists(st.integers(0, 4), max_size=8),
)
def test_cuts_change_nothing_of_time_either(records: Any, cuts: list[int]) -> None:
    """A batch that is looked at record by record sends with each record's time."""
    answers = []
    records = sorted(records, key=lambda item: item[1])
    for batch, pieces in ((False, [99]), (True, [99]), (True, [*cuts, 99])):
        app = App("x")
        source = app.topic("in", key=str, value=int)
        table = app.table("t", key=str, value=list[int], default=list)
        out = app.topic("out", key=str, value=int)

        def one(record: Record[str, int], t: Any, out: Any) -> None:
            out.send(record.key, len(t.get(record.key, [])))
            t[record.key].append(1)

        def many(records: Any, t: Any, out: Any) -> None:
            for record in records:
                one(record, t, out)

        app.processor(source, table, out, batch=batch)(many if batch else one)  # type: ignore[call-overload]
        left = list(records)
        with Driver(app) as driver:
            for size in pieces:
                piece, left = left[:size], left[size:]
                with driver.together():
                    for key, time in piece:
                        driver.send(source, key, 0, timestamp_ms=time)
            answers.append((driver.table(table), driver.records(out)))
    assert answers[0] == answers[1] == answers[2]


def popped(records: Any) -> Any:
    while records:
        yield records.pop(0)


@pytest.mark.parametrize(
    "looked_at",
    [reversed, popped, lambda records: records[:], lambda records: records[::-1], lambda records: records.copy()],
    ids=["reversed", "popped", "a part", "a part, backwards", "a copy"],
)
def test_a_batch_that_is_looked_at_in_another_order_sends_with_each_records_time(looked_at: Any) -> None:
    app = App("x")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)

    @app.processor(source, out, batch=True)
    def send(records: Any, out: Any) -> None:
        assert pickle.loads(pickle.dumps(records[:])) == records, "as the plain list that it was, for another process"
        for record in looked_at(records):
            out.send(record.key, record.value)

    with Driver(app) as driver:
        with driver.together():
            for number in range(3):
                driver.send(source, "a", number * 10, timestamp_ms=number * 10)
        assert [record.timestamp_ms - record.value for record in driver.records(out)] == [0, 0, 0]


def test_nothing_counts_where_the_second_of_two_tables_cannot_be_written() -> None:
    """What is changed in place is encoded at the end of the call: all of it, before any of it counts."""
    app = App("x", on_error="skip")
    source = app.topic("in", key=str, value=str)
    first = app.table("first", key=str, value=list[int], default=list)
    second = app.table("second", key=str, value=list[int], default=list)

    @app.processor(source, first, second)
    def change(record: Record[str, str], first: Table[str, list[int]], second: Table[str, list[int]]) -> None:
        first["a"].append(1)
        second["a"].append("no number")  # type: ignore[arg-type]

    with Driver(app) as driver:
        driver.send(source, "k", "v")
        assert (driver.table(first), driver.table(second)) == ({}, {})


def test_a_sink_kept_beyond_its_call_is_closed() -> None:
    app = App("x")
    source = app.topic("in", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    kept: list[Sink[str, str]] = []

    @app.processor(source, out)
    def keep(record: Record[str, str], out: Sink[str, str]) -> None:
        kept.append(out)

    with Driver(app) as driver:
        driver.send(source, "k", "v")
        with pytest.raises(PipelineError, match="after the call"):
            kept[0].send("a", "b")
        driver.send(source, "k", "v")
        assert driver.items(out) == []
