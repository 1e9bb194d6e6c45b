"""`retries=`, `backoff=` and errors that wait: a call that raised is undone and made again, before `on_error` decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, ProcessorFailed, Record, Sink, Table
from orchestrator.testing import Driver
from pipeline.errors import CallLost, DefinitionError
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore

SHAPES = ["sync", "async", "concurrent", "batch"]


class Client:
    """Raises the errors it is given, one a call; then it answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def ask(self) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


def app_of(client: Client, shape: str = "sync", **options: Any) -> App:
    app = App("x", partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)
    app.topic("letters", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int)

    def ask(record: Record[str, int], sums: Table[str, int], out: Sink[str, int]) -> None:
        sums[record.key] += record.value
        out.send(record.key, sums[record.key])
        client.ask()

    async def ask_later(record: Record[str, int], sums: Table[str, int], out: Sink[str, int]) -> None:
        await asyncio.sleep(0)
        ask(record, sums, out)

    def ask_all(records: Any, sums: Table[str, int], out: Sink[str, int]) -> None:
        for record in records:
            ask(record, sums, out)

    function: Any = {"sync": ask, "async": ask_later, "concurrent": ask_later, "batch": ask_all}[shape]
    more: dict[str, Any] = {"concurrency": 3} if shape == "concurrent" else {"batch": shape == "batch"}
    app.processor(source, sums, out, **more, **options)(function)
    return app


def records(count: int) -> list[tuple[str, SourceRecord]]:
    return [("in", SourceRecord(n, n, b"k%d" % n, (1).to_bytes(8, "big"))) for n in range(count)]


def process_of(app: App) -> TaskProcess:
    return TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": DictStore()}, {"out": 1, "letters": 1})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_that_raised_is_made_again_and_counts_once(shape: str) -> None:
    client = Client(ValueError("once"), ValueError("twice"))
    app = app_of(client, shape, retries=2)
    with Driver(app) as driver:
        driver.send(app.topics["in"], "ann", 1)
        driver.send(app.topics["in"], "ann", 1)
        assert driver.items(app.topics["out"]) == [("ann", 1), ("ann", 2)]
        assert driver.table(app.tables["sums"]) == {"ann": 2}
    assert client.calls == 4


@pytest.mark.parametrize("shape", SHAPES)
def test_after_its_retries_on_error_decides(shape: str) -> None:
    client = Client(*[ValueError(f"try {n}") for n in range(3)])
    app = app_of(client, shape, retries=2, on_error="letters")
    with Driver(app) as driver:
        driver.send(app.topics["in"], "ann", 1)
        [letter] = driver.records(app.topics["letters"])
        assert dict(letter.headers)["error-message"] == b"try 2"
        driver.send(app.topics["in"], "ann", 1)
        assert driver.items(app.topics["out"]) == [("ann", 1)]


def test_stop_says_how_often_it_was_tried() -> None:
    app = app_of(Client(*[ValueError("no")] * 3), retries=2)
    told = r"ask failed at in-0@0 in task 0_0, tried 3 times: ValueError: no"
    with Driver(app) as driver, pytest.raises(ProcessorFailed, match=told):
        driver.send(app.topics["in"], "ann", 1)


def test_a_run_ends_at_a_call_that_is_made_again_and_backs_off() -> None:
    process = process_of(app_of(Client(*[ValueError("no")] * 9), retries=9, backoff=timedelta(seconds=4)))
    delays = []
    left: Any = records(3)
    for _ in range(7):
        assert process.run(left) == 0
        assert process.again is not None and process.waiting is None
        delays.append(process.again.delay_s)
        left = process.left(left)
    assert delays == [4, 8, 16, 32, 60, 60, 60]
    assert [raw.offset for _, raw in left] == [0, 1, 2]
    assert not process.has_completed, "nothing of the record counts"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_client_that_is_away_makes_the_driver_say_so_and_the_record_stays(shape: str) -> None:
    client = Client(ConnectionRefusedError("nobody is there"), ConnectionResetError())
    app = app_of(client, shape, on_error={ConnectionError: "wait", Exception: "letters"})
    with Driver(app) as driver:
        told = "waits at in-0@0 in task 0_0: ConnectionRefusedError: nobody is there; a Driver does not wait"
        with pytest.raises(ProcessorFailed, match=told):
            driver.send(app.topics["in"], "ann", 1)
        assert driver.items(app.topics["out"]) == [] and driver.table(app.tables["sums"]) == {}
        with pytest.raises(ProcessorFailed, match="waits at in-0@0 in task 0_0: ConnectionResetError;"):
            driver.send(app.topics["in"], "bob", 1)
        driver.send(app.topics["in"], "cid", 1)
        assert driver.items(app.topics["out"]) == [("ann", 1), ("bob", 1), ("cid", 1)]
        assert driver.items(app.topics["letters"]) == []


def test_a_wait_has_no_end_and_is_named_with_processor_and_error() -> None:
    process = process_of(app_of(Client(*[ConnectionError("down")] * 50), retries=1, on_error={OSError: "wait"}))
    left: Any = records(2)
    process.run(left)
    assert process.waiting is None, "the first try again is a retry"
    for _ in range(40):
        left = process.left(left)
        process.run(left)
        waiting: Any = process.waiting
        assert (waiting.processor, waiting.record, waiting.error) == ("ask", "in-0@0", "ConnectionError: down")


def test_the_nearest_class_and_the_nearest_level_decide() -> None:
    app = App("x", on_error={ValueError: "skip", ConnectionError: "skip", Exception: "letters"})
    source, letters = app.topic("in", key=str, value=int), app.topic("letters", key=str, value=int)

    @app.processor(source, on_error={ConnectionError: "wait", ConnectionResetError: "stop"})
    def ask(record: Record[str, int]) -> None: ...

    policy = app.error_policy(app.processors["ask"])
    chosen = {
        type(e).__name__: policy.of(e) for e in (ConnectionResetError(), BrokenPipeError(), UnicodeError(), OSError())
    }
    assert chosen == {
        "ConnectionResetError": "stop",
        "BrokenPipeError": "wait",
        "UnicodeError": "skip",
        "OSError": letters,
    }
    assert policy.of(SystemExit(1)) == "stop"
    assert "letters" in app.topology().subtopologies[0].sinks


def test_a_call_that_ended_its_process_is_not_waited_for() -> None:
    app = app_of(Client(), on_error={Exception: "wait"})
    assert app.error_policy(app.processors["ask"]).of(CallLost("the call ended")) == "stop"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retries": -1}, "ask: retries=-1 is not a whole number from 0 on"),
        ({"retries": 1.5}, "ask: retries=1.5 is not a whole number from 0 on"),
        ({"retries": 1, "backoff": 0}, "ask: backoff=0 is neither a timedelta nor a number of seconds above 0"),
        ({"retries": 1, "backoff": float("inf")}, "ask: backoff=inf is neither"),
        ({"backoff": 1}, "ask: backoff= is the pause between two tries, and there is one try"),
        ({"on_error": "wait"}, 'on_error="wait" would wait for errors of the code, too'),
        ({"on_error": {}}, "on_error={} names no error"),
        (
            {"on_error": {"ConnectionError": "wait"}},
            "on_error names 'ConnectionError', which is not a class of exceptions",
        ),
        ({"on_error": {KeyboardInterrupt: "skip"}}, "which is not a class of exceptions"),
        ({"on_error": {ValueError: 3}}, 'has 3, which is none of "stop", "skip", "wait", a topic of the app'),
    ],
)
def test_what_is_declared_wrongly_is_refused(options: Any, told: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        app_of(Client(), **options)
    assert told in str(caught.value)


def test_a_topic_for_dead_letters_that_is_not_there_is_refused() -> None:
    app = app_of(Client(), on_error={ValueError: "lettres"})
    with pytest.raises(DefinitionError, match="on_error='lettres' of ask is none of"):
        app.topology()


@pytest.mark.parametrize("shape", SHAPES)
async def test_inside_a_running_loop_the_driver_gives_the_same_answers(shape: str) -> None:
    sent = [(f"k{n % 3}", n) for n in range(12)]

    def answer(driver: Any) -> Any:
        return driver.records(app.topics["out"]), driver.table(app.tables["sums"])

    app = app_of(Client(ValueError("once")), shape, retries=1)
    async with Driver(app) as driver:
        for key, value in sent[:6]:
            await driver.send(app.topics["in"], key, value)
        async with driver.together():
            for key, value in sent[6:]:
                await driver.send(app.topics["in"], key, value)
        inside = answer(driver)

    def in_a_def() -> Any:
        with Driver(app) as driver:
            for key, value in sent[:6]:
                driver.send(app.topics["in"], key, value)
            with driver.together():
                for key, value in sent[6:]:
                    driver.send(app.topics["in"], key, value)
            return answer(driver)

    assert inside == await asyncio.to_thread(in_a_def)


async def test_a_running_loop_opens_and_closes_resources_and_its_own_things_go_on() -> None:
    app, told = App("x"), list[str]()
    source, out = app.topic("in", key=str, value=str), app.topic("out", key=str, value=str)
    answers: asyncio.Queue[str] = asyncio.Queue()

    @app.resource
    async def client() -> Any:
        told.append("opened")
        yield answers
        told.append("closed")

    @app.processor(source, out, client)
    async def ask(record: Record[str, str], out: Sink[str, str], client: Any) -> None:
        out.send(record.key, await client.get())

    async with Driver(app) as driver:
        sending = asyncio.gather(driver.send(source, "a", "?"), driver.send(source, "b", "?"))
        await answers.put("first")
        await answers.put("second")
        await sending
        assert driver.items(out) == [("a", "first"), ("b", "second")]
    assert told == ["opened", "closed"]


@pytest.mark.parametrize("batches", ["none", "of the left", "of the right"])
@pytest.mark.parametrize("kind", ["stream", "table", "foreign key"])
def test_a_join_beside_batches_is_retried_as_often_as_alone(kind: str, batches: str) -> None:
    """What it counted was forgotten with each run of the batch, and it was called for ever."""
    app, calls = App("x", partitions=1), Counter[str]()
    left, right = (app.topic(name, key=str, value=int) for name in ("left", "right"))
    out = app.topic("out", key=str, value=str)
    options: Any = {"on_error": "skip", "retries": 2, "backoff": 0.001}

    def pairs(one: Any, other: Any, out: Any) -> None:
        calls[one.key] += 1
        if calls[one.key] > 50:
            pytest.fail("it is called for ever")
        if one.key in "bd":
            raise ValueError(one.key)
        out.send(one.key, "pair")

    if kind == "stream":
        app.join(left, right, out, within=timedelta(seconds=1), **options)(pairs)
    elif kind == "table":
        app.table_join(left, right, out, **options)(pairs)
    else:
        app.foreign_key_join(left, right, out, key=lambda value: f"r{value}", **options)(pairs)
    if batches != "none":
        app.processor(left if batches == "of the left" else right, out, batch=True)(lambda records, out: None)
    with Driver(app) as driver:
        with driver.together():
            for number, key in enumerate("abcd"):
                driver.send(right, key if kind != "foreign key" else f"r{number}", 0, timestamp_ms=0)
            for number, key in enumerate("abcd"):
                driver.send(left, key, number, timestamp_ms=1)
        assert driver.items(out) == [("a", "pair"), ("c", "pair")]
    assert calls["b"] >= 3
    assert calls["d"] == 3


class Ends:
    """A function of a batch that fails for a 1; it may be called so often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, values: Sequence[int]) -> None:
        self.calls += 1
        if self.calls > 50:
            pytest.fail("it is called for ever")
        if 1 in values:
            raise ValueError("a one")


@pytest.mark.parametrize("columns", [False, True])
def test_a_batch_before_a_record_that_cannot_be_read_is_retried_as_often_as_alone(columns: bool) -> None:
    """The stop made it forget how often the batch had failed, and the batch was called before the stop counted."""
    app, ends = App("x", partitions=1), Ends()
    source = app.topic("in", key=str, value=int)

    @app.processor(source, batch=not columns, columns=columns, retries=1, backoff=0.001)  # type: ignore[call-overload]
    def add(batch: Any) -> None:
        ends(batch.table["value"].to_pylist() if columns else [record.value for record in batch])

    with Driver(app) as driver, pytest.raises(ProcessorFailed, match="a one"), driver.together():
        driver.send(source, "k", 1)
        driver.send_bytes(source, b"k", b"bad")


def test_a_batch_before_a_record_that_stops_another_processor_is_retried_as_often_as_alone() -> None:
    app, ends = App("x", partitions=1), Ends()
    one, other = (app.topic(name, key=str, value=int) for name in ("one", "other"))
    table = app.table("t", key=str, value=int)

    @app.processor(other, table)
    def stops(record: Any, t: Any) -> None:
        raise KeyError("stop")

    @app.processor(one, table, batch=True, retries=1, backoff=0.001, on_error="skip")
    def add(batch: Any, t: Any) -> None:
        ends([record.value for record in batch])

    with Driver(app) as driver, pytest.raises(ProcessorFailed, match="stop"), driver.together():
        driver.send(one, "k", 1)
        driver.send(other, "k", 2)
    assert ends.calls <= 3
