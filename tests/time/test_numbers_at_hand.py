"""Numbers at hand are what any task would read, whatever calls do with their windows and whenever a task commits or begins anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

import pipeline.process
from orchestrator import App, Hopping, Tumbling
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.time import due_index, expiring, numbers_at_hand, window_view
from pipeline.time.window_view import WindowsView
from pipeline.values.codecs import JsonCodec
from tests.time.test_window_calls import OPERATIONS

MS = timedelta(milliseconds=1)
USUAL = ("add", "add", "add", "set", "read", "get", "ask")
OTHER = tuple(name for name in OPERATIONS if name != "bounds")
Asks = Sequence[tuple[str, str]]  # what is done, and with which window or key
Record = tuple[str, int, Asks]


def drawn(draw: random.Random) -> tuple[dict[str, Any], list[Any]]:
    """An app, and what happens to one of its tasks: records, or a commit, one that the store has later, or a new task."""
    options = {
        "window": draw.choice([Tumbling(10 * MS), Hopping(10 * MS, every=4 * MS), Hopping(9 * MS, every=3 * MS)]),
        "value": draw.choice([int, int, int, float]),
        "default": draw.choice(["type", "type", "type", "none", "function"]),
        "closes": draw.random() < 0.4,
        "retries": draw.choice([0, 0, 1]),
        "most": draw.choice([0, 3, 10**6, 10**6]),
    }
    wild, disorder, at_ms = draw.choice([0.0, 0.05, 0.3]), draw.choice([0, 0, 3, 15]), draw.choice([0, 0, 1_000])
    happens: list[Any] = []
    for _ in range(draw.randrange(2, 25)):
        part: list[Record] = []
        for _ in range(draw.randrange(1, 7)):
            at_ms += draw.choice([0, 0, 1, 1, 2, 4])
            asks = []
            for _ in range(draw.randrange(1, 5)):
                is_wild = draw.random() < wild
                where = draw.choice(["", "b", "before", "after"]) if is_wild else ""
                asks.append((draw.choice(OTHER) if is_wild else draw.choice(USUAL), where))
            if draw.random() < 0.1:
                asks.append(("fail", ""))
            elif options["retries"] and draw.random() < 0.15:
                asks.append(("fail once", ""))
            part.append((draw.choice("aab"), max(0, at_ms - draw.randrange(disorder + 1)), asks))
        happens.append(part)
        happens.append(draw.choice(["commit", "commit", "late commit", "settle one", "again", ""]))
    return options, [*happens, "commit"]


def app_of(options: dict[str, Any], seen: list[str]) -> App:
    app, failed = App("numbers", partitions=1), set[int]()
    topic, out = app.topic("beats", key=str, value=list[tuple[str, str]]), app.topic("out", key=str, value=str)
    default = {"type": options["value"], "none": None, "function": lambda: options["value"](2)}[options["default"]]
    table = {"value": options["value"], "window": options["window"], "grace": 3 * MS, "retain": 20 * MS}
    sums = app.table("sums", key=str, default=default, **table)

    @app.processor(topic, sums, on_error="skip", retries=options["retries"])
    def beat(beat: Any, sums: Any) -> None:
        for name, where in beat.value:
            if name == "fail once":
                if beat.offset not in failed:
                    failed.add(beat.offset)
                    raise ValueError(name)
                continue
            at_ms = beat.timestamp_ms + {"before": -4, "after": 7}.get(where, 0)
            here = sums if where in ("", "b") else sums.at(at_ms)
            for one in here if isinstance(options["window"], Hopping) else [here]:
                seen.append(f"{beat.offset} {name} {OPERATIONS[name](one, 'b' if where == 'b' else beat.key)}")

    if options["closes"]:

        @app.when_closed(sums, out)
        def close(window: Any, out: Any) -> None:
            out.send(window.key, f"{window.start_ms}-{window.end_ms} {window.value}")

    return app


def result(options: dict[str, Any], happens: list[Any]) -> tuple[Any, ...]:
    """All that the task says and writes, by commit."""
    seen: list[str] = []
    app, store = app_of(options, seen), DictStore()
    codec = JsonCodec(list[tuple[str, str]])
    said: list[Any] = []
    offset, unsettled = 0, [0]

    def opened() -> TaskProcess:
        task = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": store}, {"out": 1})
        for view in task._tables.values():
            view.layers.most_known = min(view.layers.most_known, options["most"])
        return task

    def collect() -> None:
        changes = task.collect()
        writes = changes.writes.get("sums", {})
        # What a call sets to another number and back is written where it is at hand, and is no change.
        changed = {key: value for key, value in writes.items() if store.get(key) != value}
        said.append((changes.outputs, changes.positions, changes.late, changed))
        store.write(writes)
        for start, stop in changes.gone.get("sums", ()):
            assert not list(store.range(start, stop)), "not all was deleted of what a store may delete at once"
        unsettled[0] += 1

    def settle(most: int = 10) -> None:
        for _ in range(min(most, unsettled[0])):
            task.mark_applied()
            unsettled[0] -= 1

    task = opened()
    for what in happens:
        if what == "settle one":
            settle(1)
        elif what == "late commit":
            collect()
        elif what in ("commit", "again"):
            collect()
            settle()
            said.append(dict(store.data))
            if what == "again":
                task = opened()
        elif what:
            records = []
            for key, at_ms, asks in what:
                records.append(("beats", SourceRecord(offset, at_ms, key.encode(), codec.encode(list(asks)))))
                offset += 1
            while records:  # a call that has failed is made again
                del records[: task.run(records)]
    return said, seen


def differs(seed: int) -> str:
    """What is not equal for a program of this seed; "" where nothing is."""
    options, happens = drawn(random.Random(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers_at_hand, "MOST", options["most"])
        patch.setattr(window_view, "_KNOWN", options["most"])
        patch.setattr(expiring, "MOST", options["most"] * 2)
        patch.setattr(due_index, "AHEAD", max(1, options["most"]))
        found = result(options, happens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.process, "window_calls", lambda *arguments: None)
        expected = result(options, happens)
    return "" if found == expected else f"seed {seed}: {options}"


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_numbers_at_hand_are_what_any_task_would_read(first: int) -> None:
    assert [found for seed in range(first, first + 100) if (found := differs(seed))] == []


def counting(app: App) -> tuple[Any, TaskProcess, DictStore]:
    """A task that adds up values in windows of 10 ms, and its topic and store."""
    topic = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(10 * MS))

    @app.processor(topic, sums)
    def beat(beat: Any, sums: Any) -> None:
        sums[beat.key] += beat.value

    store = DictStore()
    return topic, TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": store}, {}), store


def test_what_is_written_together_carries_the_time_of_the_last_call() -> None:
    topic, task, _ = counting(App("times", partitions=1))
    records = [SourceRecord(n, n, b"a", topic.value_codec.encode(value)) for n, value in enumerate([1, 1, 0])]
    task.run([("beats", record) for record in records])
    assert task.collect().write_timestamp_ms == {"sums": 1}


def test_no_more_numbers_are_at_hand_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers_at_hand, "MOST", 10)
    topic, task, store = counting(App("room", partitions=1))
    for number in range(50):
        task.run([("beats", SourceRecord(number, 1, b"key-%d" % number, topic.value_codec.encode(1)))])
        store.write(task.collect().writes["sums"])
        task.mark_applied()
        (view,) = task._tables.values()
        assert sum(map(len, cast(WindowsView[Any, Any], view).at_hand.windows.values())) <= 10


def test_what_the_store_does_not_have_is_seen_where_no_window_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers_at_hand, "MOST", 0)
    topic, task, store = counting(App("seen", partitions=1))
    for number, (key, at_ms) in enumerate([(b"old", 1_001), (b"older", 1_501), (b"a", 2_001), (b"b", 2_001)]):
        task.run([("beats", SourceRecord(number, at_ms, key, topic.value_codec.encode(1)))])
        changes = task.collect()
        if key != b"b":
            store.write(changes.writes["sums"])
        if at_ms < 2_000:
            task.mark_applied()
    task.mark_applied()
    (view,) = task._tables.values()
    view.closed = False
    assert [key for (key, _), _ in cast(WindowsView[Any, Any], view).shown()] == ["a", "b"]


def test_what_cannot_be_read_may_be_overwritten() -> None:
    app, store = App("overwritten", partitions=1), DictStore()
    topic = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(10 * MS))

    @app.processor(topic, sums)
    def beat(beat: Any, sums: Any) -> None:
        sums[beat.key] = beat.value

    entry = b"w" + (0).to_bytes(8, "big") + b"a"
    store.write({entry: b"no number"})
    task = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": store}, {})
    task.run([("beats", SourceRecord(0, 1, b"a", topic.value_codec.encode(5)))])
    assert task.collect().writes["sums"][entry] == topic.value_codec.encode(5)
