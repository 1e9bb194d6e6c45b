"""What expires is what a look into the store would find, whatever was given up on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest

from orchestrator import App, Hopping, HoppingTable, Record, Tumbling, TumblingTable
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.tables.write_layers import WriteLayers
from pipeline.time import expiring
from pipeline.time.expiring import Expiring
from pipeline.time.timed_view import read_time

MS = timedelta(milliseconds=1)


def entry_of(bucket: int, number: int) -> tuple[int, bytes]:
    """A bucket and a key, which begins with it."""
    return bucket, b"%04d-%d" % (bucket, number)


@pytest.mark.parametrize("most_kept", [5, 40, 10_000])
def test_what_is_forgotten_is_what_the_store_has(most_kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a join uses it: entries are never of a bucket that is over, and what is forgotten may come in parts."""
    monkeypatch.setattr(expiring, "MOST", most_kept)
    draw, known_often, parts = random.Random(most_kept), 0, 0
    for _ in range(100):
        store: set[tuple[int, bytes]] = set()
        found = Expiring(0)
        if draw.random() < 0.5:  # a store that is there already: nothing lies behind bucket 3
            store = {entry_of(draw.randrange(4), n) for n in range(6)}
            found.lose(4)
        kept_from, now = (0, b""), 0
        for number in range(draw.randrange(5, 60)):
            what = draw.random()
            if what < 0.6:
                entry = entry_of(now + draw.randrange(4), draw.randrange(10**6))
                if entry not in store:
                    store.add(entry)
                    found.add(*entry)
            elif what < 0.63:  # an undo: what was written stays, what is known is not
                found.lose(now + 4)
            else:
                now += draw.randrange(3)
                most = draw.choice([None, 1, 3, 10])
                there = sorted(entry for entry in store if kept_from <= entry < (now, b""))
                answer = found.take(kept_from[0], now, most)
                gone = there[:most]
                if answer is not None:
                    known_often += 1
                    parts += answer[1]
                    assert answer == ([key for _, key in gone], len(gone) < len(there)), number
                store -= set(gone)
                kept_from = (gone[-1][0], gone[-1][1] + b"\x00") if len(gone) < len(there) else (now, b"")
                assert all(entry >= kept_from for entry in store)
    assert known_often > 100 and (parts > 20 or most_kept == 5)


class CountedStore(DictStore):
    """A store that knows how often it was looked through; one with a buffer writes that out each time."""

    looks = 0

    def range(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self.looks += 1
        return super().range(start, stop)


def test_windows_that_are_known_expire_without_a_look_into_the_store() -> None:
    app = App("known")
    topic = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Hopping(20 * MS, every=10 * MS))

    @app.processor(topic, sums)
    def beat(beat: Record[str, int], sums: HoppingTable[str, int]) -> None:
        for window in sums:
            if beat.value:
                window[beat.key] += beat.value
            elif beat.key in window:
                del window[beat.key]

    store = CountedStore()
    task = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": store}, {})
    draw, deleted, most = random.Random(1), 0, 0
    for number in range(400):
        value = draw.randrange(3)
        deleted += not value
        raw = topic.value_codec.encode(value)
        task.run([("beats", SourceRecord(number, 1_000 + number * 2, b"key-%d" % draw.randrange(9), raw))])
        writes = task.collect().writes.get("sums", {})
        assert {key for key, written in writes.items() if written is None} <= store.data.keys(), (
            "what was read alone is not"
        )
        store.write(writes)
        task.mark_applied()
        starts = {read_time(key) for key in store.data if b"key-" in key}
        assert not starts or min(starts) > 1_000 + number * 2 - 60, "what is over is gone"
        most = max(most, len(starts))
        if number == 100:
            store.looks = 0
    assert store.looks == 0
    assert deleted > 50 and most > 1


def test_what_was_read_by_a_call_that_is_made_again_expires() -> None:
    """It is known not to be in the store, in a window later than all that were written, so it is not read again."""
    app = App("again")
    topic = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(10 * MS))
    failed: set[int] = set()

    @app.processor(topic, sums)
    def beat(beat: Record[str, int], sums: TumblingTable[str, int]) -> None:
        if beat.value % 3 or beat.value in failed:
            sums[beat.key] += 1
        else:
            assert beat.key not in sums

    @app.processor(topic, retries=1)
    def fail(beat: Record[str, int]) -> None:
        if beat.value % 3 == 0 and beat.value not in failed:
            failed.add(beat.value)
            raise ValueError("once")

    store = DictStore()
    task = TaskProcess(app, app.topology().subtopologies[0], 0, {"sums": store}, {}, rests=False)
    for number in range(100):
        raw = SourceRecord(number, 1_000 + number * 4, b"key-%d" % number, topic.value_codec.encode(number))
        task.run([("beats", raw)])
        if task.again is not None:
            task.run([("beats", raw)])
        store.write(task.collect().writes.get("sums", {}))
        task.mark_applied()
        starts = [read_time(key) for key in store.data if b"key-" in key]
        assert starts and min(starts) >= 1_000 + number * 4 - 20, number
    assert len(failed) > 30


def test_what_a_later_take_deletes_stays_known_until_it_is_applied() -> None:
    """The store has what the take between them wrote."""
    layers = WriteLayers()
    layers.forgets_deleted = True
    for raw in (None, b"between", None):
        layers.put({b"key": raw}, 1)
        layers.collect()
    known = []
    for _ in range(3):
        layers.forget_deleted()
        layers.mark_applied()
        known.append(layers.known.get(b"key", b"unknown"))
    assert known == [None, None, b"unknown"]


def test_a_task_that_is_opened_again_is_at_the_time_that_a_table_which_expires_has_kept() -> None:
    """Also where nothing else of it keeps time, and its calls go by that of its joins."""
    app = App("rows", partitions=1)
    beats, out = app.topic("beats", key=str, value=int), app.topic("out", key=str, value=int)
    short, rows = app.table("short", key=str, value=int, expire=15 * MS), app.table("rows", key=str, value=int)
    seen: list[int | None] = []

    @app.processor(beats, short, rows)
    def beat(beat: Record[str, int], short: dict[str, int], rows: dict[str, int]) -> None:
        seen.append(short.get(beat.key))
        short[beat.key] = rows[beat.key] = beat.value

    @app.table_join(rows, app.table_of(app.topic("names", key=str, value=int)), out, kind="left")
    def row(row: Record[str, int], name: Record[str, int] | None, out: object) -> None: ...

    (subtopology,) = app.topology().subtopologies
    stores = {name: DictStore() for name in subtopology.tables}

    def run(offset: int, at_ms: int) -> None:
        task = TaskProcess(app, subtopology, 0, stores, {"out": 1})
        task.run([("beats", SourceRecord(offset, at_ms, b"ann", offset.to_bytes(8, "big")))])
        for name, written in task.collect().writes.items():
            stores[name].write(written)

    for offset, at_ms in enumerate((50, 60, 100, 70, 95, 114, 115)):
        run(offset, at_ms)
    # Those of 70 and 95 come out of order: they are written at 100, which expires at 115.
    assert seen == [None, 0, None, 2, 3, 4, 5]
