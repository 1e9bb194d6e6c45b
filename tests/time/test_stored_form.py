"""What tools read of stores and changelogs by the description alone is what the app has."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import App, Hopping, Session, Sliding, Tumbling
from orchestrator.errors import WrongUse
from orchestrator.testing import Driver
from pipeline.time.durations import time_of_text
from pipeline.time.stored_form import StoredForm, StoredRow
from pipeline.values.json_values import shown
from workers.commands.query_windows import Range, checked_range

DAY = timedelta(days=1)
HOUR_MS = 3_600_000
WINDOWS = [
    Tumbling(hours=1),
    Tumbling(days=1, zone="Europe/Paris", offset=timedelta(hours=2)),
    Hopping(hours=2, every=timedelta(minutes=30)),
    Sliding(minutes=40),
    Session(gap=timedelta(minutes=20), merge=lambda one, other: one + other),
]


def app_with(window: Any) -> tuple[App, Any, Any, Any, Any]:
    app = App("tools", partitions=2)
    beats = app.topic("beats", key=str, value=int)
    sums = app.table("sums", key=str, value=int, default=int, window=window, grace=timedelta(hours=1), retain=DAY)
    silent, last = app.timers("silent", key=str), app.table_of(beats, versions=DAY)

    @app.processor(beats, sums, silent, last, alias={last: "last"})
    def beat(beat: Any, sums: Any, silent: Any, last: Any) -> None:
        for one in sums if isinstance(window, Hopping | Sliding) else [sums]:
            one[beat.key] += beat.value
        silent[beat.key] = beat.timestamp_ms + HOUR_MS

    @app.when_due(silent)
    def due(due: Any) -> None: ...

    @app.when_closed(sums)
    def close(window: Any) -> None: ...

    return app, beats, sums, silent, last


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: type(window).__name__)
def test_rows_are_what_the_driver_shows(window: Any) -> None:
    app, beats, sums, silent, last = app_with(window)
    facts = app.describe()["tables"]
    chance = random.Random(3)
    with Driver(app) as d:
        at = 0
        for number in range(300):
            at += chance.randrange(HOUR_MS // 2)
            late = max(0, at - chance.randrange(HOUR_MS))
            d.send(beats, chance.choice("abcdefgh"), number, timestamp_ms=late)
        for table in (sums, silent, last):
            form = StoredForm(facts[table.name])
            entries = [pair for stores in d._stores.values() for pair in stores[table.name].data.items()]
            rows = [row for key, value in entries if (row := form.row(key, value)) is not None]
            assert form.is_readable and len(rows) < len(entries)
            found = {
                (shown("str", row.key), (row.start_ms, row.end_ms))
                if form.is_windowed
                else shown("str", row.key): shown(form.value_codec, row.value)
                for row in rows
            }
            assert found == d.table(table)
            for key, _ in entries:
                low, high = form.bounds(b"", None)
                assert form.row(key, b"") is None or (low <= key and (high is None or key < high))


def test_a_row_that_is_gone_keeps_its_window() -> None:
    of = {type(window).__name__: StoredForm({"form": window.described(), "value_codec": "int"}) for window in WINDOWS}
    windows = of["Hopping"]
    assert windows.row(windows.of_window(HOUR_MS, b"ann"), None) == StoredRow(b"ann", HOUR_MS, 3 * HOUR_MS, None)
    session = of["Session"].of_key(b"ann") + (7).to_bytes(8, "big") + bytes(2)
    assert of["Session"].row(session, None) == StoredRow(b"ann", 7, None, None)


def test_what_is_open_and_what_holds_a_time() -> None:
    tumbling = StoredForm({"form": Tumbling(hours=1).described(), "value_codec": "int", "grace_ms": 10})
    row = StoredRow(b"ann", 0, HOUR_MS, b"")
    assert tumbling.is_open(row, HOUR_MS + 9) and not tumbling.is_open(row, HOUR_MS + 10)
    assert tumbling.holds(row, HOUR_MS - 1) and not tumbling.holds(row, HOUR_MS)
    session = StoredForm({"form": {"kind": "session", "gap_ms": 5}, "value_codec": "int", "grace_ms": 10})
    row = StoredRow(b"ann", 100, 110, b"")
    assert session.is_open(row, 125) and not session.is_open(row, 126) and session.holds(row, 110)
    older = StoredForm({"form": Tumbling(hours=1).described(), "value_codec": "int"})
    assert older.is_open(row, 0) is None


def test_what_joins_keep_is_for_them_alone() -> None:
    assert not StoredForm({"form": {"kind": "join"}, "value_codec": "bytes"}).is_readable
    assert not StoredForm({"form": {"kind": "subscriptions"}, "value_codec": "bytes"}).is_readable


def test_ranges_and_times_as_typed() -> None:
    plain = StoredForm({"value_codec": "int"})
    with pytest.raises(WrongUse, match="has no windows"):
        checked_range(plain, "sums", Range(at_ms=1))
    with pytest.raises(WrongUse, match="give one of them"):
        checked_range(StoredForm({"form": Tumbling(hours=1).described(), "value_codec": "int"}), "sums", Range(1, 2))
    assert time_of_text("1000") == 1000
    assert time_of_text("1970-01-01T01:00Z") == time_of_text("1970-01-01T02:00+01:00") == HOUR_MS
    assert time_of_text("1970-01-02") == 24 * HOUR_MS
    with pytest.raises(ValueError, match="neither milliseconds"):
        time_of_text("yesterday")
    for digits in (
        "99999999999999999999999",
        str(1 << 63),
        "9" * 5_000,
    ):  # none takes 8 bytes: it was an internal error
        with pytest.raises(ValueError, match="that is no time; the last one is 9223372036854775807"):
            time_of_text(digits)
    assert time_of_text(str((1 << 63) - 1)) == (1 << 63) - 1
