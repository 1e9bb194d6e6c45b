"""An app with windows, sessions, timers and a join gets more tasks: on Spark, in the log, in real processes, and after a failure."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety
from orchestrator.testing import Driver
from pipeline.spark import final_records
from pipeline.spark import repartition as module
from pipeline.spark.move_job import TimeNotPassed
from pipeline.spark.repartition import repartition
from pipeline.values.partitioner import partition_of
from state.errors import StateError
from state.log.protocol import GroupLog, NewRecord, Partition
from state.log.sqlite import SqliteLog
from tests.cli.console import Console, console_of
from tests.spark import failing
from tests.spark.more_tasks import Moved
from tests.spark.test_backfill import ROOT, Place, write
from tests.spark.test_repartition import Failing, broken
from tests.time import watch
from tests.time.test_live import FAST, Beat, by_key, driver_answer, history, live_answer, produce
from workers.commands.consume import read_all
from workers.errors import AppRefused
from workers.fleet.held_lease import lease_held
from workers.prepare import REPARTITION, REPARTITIONED, prepare, refuse_half_done

pytestmark = pytest.mark.spark
WATCH, FAILING = "tests.time.watch:app", "tests.spark.failing:app"


@pytest.fixture
def place(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(ROOT)
    return Place(tmp_path, spark)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with console_of(watch, tmp_path / "place") as found:
        yield found


async def laid_out(place: Place, to: int, app: str = WATCH, **more: Any) -> dict[str, Any]:
    return await repartition(app, place.url, to, place.folder / "state", session=place.spark, **more)


async def entries(log: GroupLog) -> dict[tuple[str, int, bytes], bytes]:
    """What the changelogs hold, by table, partition and key."""
    found: dict[tuple[str, int, bytes], bytes | None] = {}
    for name, table in watch.app.tables.items():
        for where, record in await read_all(log, table.changelog):
            found[name, where.number, record.key or b""] = record.value
    return {place: value for place, value in found.items() if value is not None}


async def sent(log: GroupLog) -> dict[str, list[str]]:
    rows = [(str(r.key, "utf-8"), str(r.value, "utf-8")) for _, r in await read_all(log, "out") if r.key and r.value]
    return by_key(iter(rows))


async def begun(place: Place, records: list[Beat]) -> GroupLog:
    log = await place.log()
    await write(log, watch.app, [(watch.app.topics[topic], key, value, at) for topic, key, value, at in records])
    await place.backfill(WATCH)
    return log


def by_functions(records: list[Beat]) -> tuple[dict[tuple[str, int, bytes], bytes], dict[str, list[str]], int]:
    """Entries, what was sent, and how many calls came due, as a Driver of two tasks has them whose app gets three."""
    with Driver(watch.app, partitions=2) as driver, driver.together():
        for topic, key, value, at in records:
            headers = (("trace", b"t%d" % (at % 5)),) if at % 2 else ()  # as `write` gives them
            driver.send(watch.app.topics[topic], key, value, timestamp_ms=at, headers=headers)
    with Moved(driver, 3) as other:
        found = {
            (table, int(task.partition("_")[2]), key): value
            for task, stores in other._stores.items()
            for table, store in stores.items()
            for key, value in store.data.items()
        }
        answer = by_key((item.key, item.value) for item in other.records(watch.out))
    return found, answer, sum(other.due.values())


async def test_it_is_what_the_same_functions_give_and_is_done_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = history(300, 11)
    log = await begun(place, records)
    expected, answer, due = await asyncio.to_thread(by_functions, records)
    assert due
    before, were_sent = await entries(log), await sent(log)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "seed_positions", broken)
        with pytest.raises(StateError):
            await laid_out(place, 3)
    assert (await entries(log), await sent(log)) == (before, were_sent)  # topics have grown, and that is all

    with monkeypatch.context() as patch:
        patch.setattr(final_records, "PART_RECORDS", 4)
        patch.setattr(module, "PARTS", 1)
        failing = Failing(patch, 20)
        with pytest.raises(StateError):
            await laid_out(place, 3)
    assert len(failing.sizes) == 20 and set(failing.sizes[1:]) == {4}
    half = await entries(log)
    assert await sent(log) == answer and half.keys() - expected.keys() and expected.keys() - half.keys()
    late = NewRecord(b"k1", watch.ships.value_codec.encode(1), records[-1][3] + 1)
    await log.append({Partition("ships", number): [late] for number in range(3)})  # after it began: joins go by before
    put = SqliteLog.put_metadata

    async def broken_at_the_end(log: Any, *given: Any, **more: Any) -> None:
        if given[1] == REPARTITION and given[3] is None:
            raise StateError("the disk is gone")
        await put(log, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "put_metadata", broken_at_the_end)
        with pytest.raises(StateError):
            await laid_out(place, 3)
    assert (await entries(log), await sent(log)) == (expected, answer)
    with pytest.raises(AppRefused, match="--to 3"):
        await refuse_half_done(log, "watch")
    facts = await laid_out(place, 3)  # what was written is not written again
    await refuse_half_done(log, "watch")
    assert facts["outcome"] == "done" and facts["from"] == 2 and facts["moved"] == 0
    assert (await entries(log), await sent(log)) == (expected, answer)
    assert (await laid_out(place, 3))["outcome"] == "nothing to do"
    assert {(await prepare(log, watch.app)).counts()[name] for name in facts["topics"]} == {3}
    await log.close()


@pytest.mark.long
async def test_what_an_earlier_one_to_the_same_number_left_does_not_pass_for_its_own(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of topics that an upgrade brought, or that were made anew: what time brings about was left out, where it was cut off as well."""
    records = history(300, 11)
    log = await begun(place, records)
    expected, answer, due = await asyncio.to_thread(by_functions, records)
    assert due
    async with lease_held(log, "watch", "repartition") as held:
        laid = json.dumps({"to": 3, "ends": {}}).encode()
        await log.put_metadata("watch", REPARTITIONED, "inputs", laid, lease=held.lease)
        await log.put_metadata("watch", REPARTITION, "ends", b"{}", lease=held.lease)  # its last step was not done
    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "seed_positions", broken)
        with pytest.raises(StateError):
            await laid_out(place, 3)
    assert (await laid_out(place, 3))["outcome"] == "done"
    assert (await entries(log), await sent(log)) == (expected, answer)
    await log.close()


@pytest.mark.long
async def test_what_is_far_behind_or_cannot_be_called_is_refused(place: Place) -> None:
    log = await place.log()
    keys = {partition_of(key.encode(), 2): key for key in (f"k{n}" for n in range(20))}
    day_ms = 86_400_000
    await write(log, failing.app, [(failing.beats, keys[0], 1, 40), (failing.beats, keys[1], 1, day_ms)])
    await place.backfill(FAILING)
    with pytest.raises(
        RefusedBySafety, match=r"task 0_0 .* is at 40 ms .*--to 4, .*or let it go forward with --forward 86400s"
    ):
        await laid_out(place, 3, FAILING)
    plan = await laid_out(place, 3, FAILING, most_forward_ms=day_ms, is_plan=True)  # which calls nothing
    assert plan["outcome"] == "plan" and plan["forward_ms"] == {"0_0": day_ms - 40} and plan["due"] == {"sums": 1}
    with pytest.raises(
        TimeNotPassed, match=r"task 0_0 is brought forward to 86400000 ms.*nothing was changed.*no more"
    ):
        await laid_out(place, 3, FAILING, most_forward_ms=day_ms)
    assert (await prepare(log, failing.app)).counts()["failing-beats"] == 2
    facts = await laid_out(place, 4, FAILING)
    assert facts["outcome"] == "done" and not facts["forward_ms"] and facts["due"] == {}
    await log.close()


async def test_an_input_that_goes_by_another_hash_is_refused(place: Place) -> None:
    log = await place.log()
    await prepare(log, watch.app)
    key = next(key for key in (b"k%d" % n for n in range(20)) if partition_of(key, 2) == 0)
    await log.append({Partition("ships", 1): [NewRecord(key, watch.ships.value_codec.encode(1), 40)]})
    await place.backfill(WATCH)
    with pytest.raises(RefusedBySafety, match=r"entries of match-join lie in partition 1 .* belongs to 0 of 2"):
        await laid_out(place, 4)
    await log.close()


@pytest.mark.long
@pytest.mark.processes
async def test_it_goes_on_in_real_processes(console: Console, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    records = history(600, 12)
    middle = len(records) // 2
    first, since = records[:middle], records[middle - 1][3] + 1
    later = [(topic, key, value, max(at, since)) for topic, key, value, at in records[middle:]]
    with Driver(watch.app, partitions=3) as driver, driver.together():
        for topic, key, value, at in [*first, *later]:
            driver.send(watch.app.topics[topic], key, value, timestamp_ms=at)
    expected = by_key((item.key, item.value) for item in driver.records(watch.out))

    def lived(records: list[Beat], answer: dict[str, list[str]]) -> None:
        produce(console, records)
        run = console.run("--workers", "2", *FAST, wait=False)
        count = sum(map(len, answer.values()))
        console.until("the answer", lambda: sum(map(len, live_answer(console).values())) >= count)
        console.until("the end of the inputs", lambda: is_read(console))
        run.send_signal(signal.SIGTERM)
        assert console.end(run) == 0, console.said("run")

    await asyncio.to_thread(lived, first, driver_answer(first))
    folder = console.folder / ".orchestrator"
    facts = await repartition(WATCH, f"sqlite:{folder / 'watch.db'}", 3, folder / "state", session=spark)
    assert facts["outcome"] == "done" and facts["moved"] and facts["due"], facts
    await asyncio.to_thread(lived, later, expected)
    assert await asyncio.to_thread(live_answer, console) == expected


def is_read(console: Console) -> bool:
    tasks = console.here("status", "watch", "--json").json["tasks"]
    return bool(tasks) and all(task["input_lag"] == 0 for task in tasks)
