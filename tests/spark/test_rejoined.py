"""Records that several tasks send on have no place in the log on Spark: none takes another's, and an audit of what names them holds."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import Driver
from pipeline.records import OutputRecord
from pipeline.spark.letters import without_place
from pipeline.spark.verifying import verify
from pipeline.values.partitioner import partition_of
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite
from tests.cli.console import Console
from tests.often import often
from tests.spark.rejoined import app, calls, letters, pairs, unmet, visits
from tests.spark.test_backfill import ROOT, Place, write
from workers.commands.consume import read_all

pytestmark = pytest.mark.spark
APP = "tests.spark.rejoined:app"


@pytest.fixture
def place(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(ROOT)
    return Place(tmp_path, spark)


def history(count: int, seed: int) -> list[tuple[Any, Any, Any, int]]:
    """People of each partition call a room in the same second."""
    chance = random.Random(seed)
    rooms = ["hall", "attic", "cellar", "garden"]
    people = {partition_of(f"p{n}".encode(), 4): f"p{n}" for n in range(20)}
    found: list[tuple[Any, Any, Any, int]] = []
    for second in range(count):
        at_ms, room = 1000 * second, chance.choice(rooms)
        found += [(calls, person, f"{person} {room}", at_ms) for person in people.values()]
        found.append((visits, chance.choice(rooms), chance.choice(["ann", "bob", "nobody"]), at_ms + 3_000))
    return found


@pytest.mark.parametrize("has_files", often((False, True), False))
async def test_records_of_one_time_from_several_tasks_are_all_joined(place: Place, has_files: bool) -> None:
    """Each task counts what it sends: two records of one key and time had one place in the join, and one of them was lost. Beside lines of
    files Spark puts them in order, else we do."""
    log, sent = await place.log(), history(30, seed=7)
    named = {}
    if has_files:
        rows = [{"key": key, "value": value, "timestamp_ms": at} for topic, key, value, at in sent if topic is visits]
        (place.folder / "visits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        named = {"visits": [str(place.folder / "visits.jsonl")]}
    await write(log, app, [one for one in sent if not has_files or one[0] is not visits])
    facts = await place.backfill(APP, named)
    with Driver(app) as driver:
        with driver.together():
            for topic, key, value, at_ms in sent:
                driver.send(topic, key, value, timestamp_ms=at_ms)
        expected = Counter((r.key.encode(), r.value.encode(), r.timestamp_ms) for r in driver.records(pairs))
        rejected = len(driver.records(letters)) + len(driver.records(unmet))
    assert Counter((r.key, r.value, r.timestamp_ms) for _, r in await read_all(log, "pairs")) == expected
    assert facts["dead_lettered"] == rejected > 0
    said = [dict(r.headers) for topic in ("letters", "unmet") for _, r in await read_all(log, topic)]
    offsets = [one["error-offset"] for one in said if "error-offset" in one]
    assert bool(offsets) != has_files and all(int(one) >= 0 for one in offsets), (
        "of a call, or of none: it is not in the log"
    )
    by_room = b"rejoined-by-room-repartition-"
    assert {one["error-left"][:-1] for one in said if "error-left" in one} == {by_room}
    checks = await verify(APP, place.url, history=named, say=place.said.append, session=place.spark)
    assert all(check["ok"] for check in checks), checks
    await log.close()


def test_dead_letters_of_history_name_no_offset() -> None:
    there = (("error-topic", b"orders"), ("error-partition", b"1"), ("error-offset", b"7"))
    in_history = (("error-topic", b"orders"), ("error-partition", b"1"), ("error-offset", b"-1099511627775"))
    plain, due = (("trace", b"1"),), (("error-topic", b"deadline"), ("error-offset", b"-1"))
    given = [OutputRecord(b"k", b"v", 5, headers) for headers in (there, in_history, plain, due, (*there, *in_history))]
    found = [one.headers for one in without_place(given)]
    assert found == [there, in_history[:2], plain, due, (*there, *in_history[:2])]


@pytest.mark.long
@pytest.mark.processes
async def test_what_is_behind_a_rekey_is_audited_live(tmp_path: Path, place: Place) -> None:
    """Offsets of what tasks send on are others with each run: entries of the join, and letters that name them, were said to differ."""
    console = Console(tmp_path / "place", "rejoined")
    console.write("rejoined.py", (ROOT / "tests/spark/rejoined.py").read_text())
    (console.folder / ".orchestrator").mkdir()
    path = console.folder / ".orchestrator/rejoined.db"
    log = await open_sqlite(path, create=True)
    await write(log, app, history(30, seed=8))
    try:
        await asyncio.to_thread(console.run)
        checks = await verify(APP, f"sqlite:{path}", say=place.said.append, session=place.spark)
        compared = {check["check"]: check["ok"] for check in checks}
        assert all(compared.values()), compared
        [of_join] = [check for check in checks if check["check"] == "table meet-join: every key"]
        assert of_join["found"] > 0

        await log.append({Partition("rejoined-meet-join-changelog", 0): await changed(log)})
        checks = await verify(APP, f"sqlite:{path}", say=place.said.append, session=place.spark)
        assert [check["check"] for check in checks if not check["ok"]] == [of_join["check"]]
    finally:
        await log.close()
        await asyncio.to_thread(console.close)


async def changed(log: Any) -> list[NewRecord]:
    """An entry of the join with another value."""
    found = [r for where, r in await read_all(log, "rejoined-meet-join-changelog") if where.number == 0 and r.value]
    return [NewRecord(found[-1].key, b"\0another", found[-1].timestamp_ms)]
