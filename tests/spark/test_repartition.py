"""State of four tasks becomes state of six: every value is there before and after, nothing is processed again, and half of it is
no start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety, WrongUse
from pipeline.spark import final_records, moves
from pipeline.spark import repartition as module
from pipeline.spark.repartition import repartition
from pipeline.spark.session import SparkFailed
from pipeline.spark.verifying import verify
from pipeline.values.partitioner import partition_of
from state.errors import LogFull, LogUnavailable, OutcomeUnknown, StateError
from state.log.protocol import GroupLog, NewRecord, Partition, Retention
from state.log.sqlite import SqliteLog
from tests.cli.console import Console
from tests.often import often
from tests.spark import outside, sample, tallies
from tests.spark.test_audit import TALLIES, marks
from tests.spark.test_backfill import APP, OUTSIDE, ROOT, Place, committed, driven, records, write
from tests.spark.test_snapshot_only import Life, opened
from workers.commands.consume import read_all
from workers.errors import AppRefused
from workers.journal import read_journals
from workers.prepare import prepare, refuse_half_done

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


async def laid_out(place: Place, to: int, app: str = TALLIES, **more: Any) -> dict[str, Any]:
    return await repartition(app, place.url, to, place.folder / "state", session=place.spark, **more)


async def values(log: GroupLog) -> dict[tuple[int, bytes], bytes]:
    """The entries of the tallies' table, by partition and key."""
    found: dict[tuple[int, bytes], bytes | None] = {}
    for where, record in await read_all(log, tallies.sums.changelog):
        found[where.number, record.key or b""] = record.value
    return {at: value for at, value in found.items() if value is not None}


async def begun(place: Place) -> GroupLog:
    log = await place.log()
    await write(log, tallies.app, marks(40))
    await place.backfill(TALLIES)
    return log


def broken(*given: Any, **more: Any) -> Any:
    raise StateError("the disk is gone")


async def test_half_of_it_is_no_start_and_the_same_command_ends_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await begun(place)
    before, counts = await values(log), (await prepare(log, tallies.app)).counts()

    with monkeypatch.context() as patch:
        patch.setattr(module, "_moves", broken)
        with pytest.raises(StateError):
            await laid_out(place, 5)
    await refuse_half_done(log, "tallies")  # nothing of it is there: it may start
    assert (await prepare(log, tallies.app)).counts() == counts and await values(log) == before

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "seed_positions", broken)
        with pytest.raises(StateError):
            await laid_out(place, 5)
    with pytest.raises(AppRefused, match="repartition MODULE:APP --to 5"):
        await refuse_half_done(log, "tallies")
    with pytest.raises(AppRefused, match="repartition MODULE:APP --to 5"):
        await verify(TALLIES, place.url, say=place.said.append, session=place.spark)
    with pytest.raises(RefusedBySafety, match="run it with --to 5"):
        await laid_out(place, 6)
    facts = await laid_out(place, 5)
    assert facts["outcome"] == "done" and facts["entries"] == len(before) and 0 < facts["moved"] <= len(before)
    await refuse_half_done(log, "tallies")
    after = await values(log)
    assert {key: value for (_, key), value in after.items()} == {key: value for (_, key), value in before.items()}
    assert all(number == partition_of(key, 5) for number, key in after)
    assert (await laid_out(place, 5))["outcome"] == "nothing to do"
    with pytest.raises(AppRefused, match="an audit cannot read them again"):
        await verify(TALLIES, place.url, say=place.said.append, session=place.spark)
    await log.close()


@pytest.mark.long
async def test_where_some_topics_have_grown_it_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that want the topics of an app advised to begin anew, which loses its state."""
    log = await begun(place)
    grown = SqliteLog.grow_topic

    async def first_alone(log: SqliteLog, name: str, partitions: int) -> Any:
        return await (grown(log, name, partitions) if name == "marks" else broken())

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "grow_topic", first_alone)
        with pytest.raises(StateError):
            await laid_out(place, 5)
    with pytest.raises(AppRefused, match="a repartition began and did not end; run"):
        await prepare(log, tallies.app)
    assert (await laid_out(place, 5))["outcome"] == "done"
    await log.close()


@pytest.mark.parametrize("by", often((5, 2), 2))
async def test_state_moves_to_the_number_of_an_input_that_others_have_grown(place: Place, by: int) -> None:
    """By Kafka's own tools, say. What is not processed stays where it lies by the new number; by the one before it is named."""
    log = await begun(place)
    before = await values(log)
    await log.grow_topic("marks", 5)
    with pytest.raises(AppRefused, match="`orchestrator repartition MODULE:APP --to` their number"):
        await prepare(log, tallies.app)
    with pytest.raises(RefusedBySafety, match=r"marks 5, tallies-sums-changelog 2\); .* give their number: --to 5"):
        await laid_out(place, 6)
    for n in range(20):
        key = b"later%d" % n
        await log.append(
            {Partition("marks", partition_of(key, by)): [NewRecord(key, tallies.marks.value_codec.encode(n), 9_000)]}
        )
    assert (await laid_out(place, 5, is_plan=True))["refused_for"] is None
    if by == 2:
        with pytest.raises(
            RefusedBySafety,
            match=r"has not processed the record at \d+ of marks.* sent by the number of partitions before",
        ):
            await laid_out(place, 5)
        with pytest.raises(AppRefused, match="partition counts differ"):
            await prepare(log, tallies.app)
        await log.close()
        return
    assert (await laid_out(place, 5))["outcome"] == "done"
    after = await values(log)
    assert {key: value for (_, key), value in after.items()} == {key: value for (_, key), value in before.items()}
    assert all(number == partition_of(key, 5) for number, key in after)
    prepared = await prepare(log, tallies.app)
    assert prepared.counts() == {"marks": 5, "tallies-sums-changelog": 5, "seen": 2}
    inputs = [Partition("marks", number) for number in range(5)]
    positions, ends = await log.positions("tallies", inputs), await log.ends(inputs)
    assert sum(ends[where] - positions.get(where, 0) for where in inputs) == 20, "none is passed over"
    await log.close()


@pytest.mark.parametrize("kind", often((LogFull, LogUnavailable, OutcomeUnknown, SparkFailed), OutcomeUnknown))
async def test_a_log_that_ends_it_says_that_it_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """Where topics have grown, the app is refused until it has ended; the error was of the log's space, or the broker, alone."""
    log = await begun(place)
    again = "then run the same command again: 'tallies' starts once that has ended"

    def failing(*given: Any, **more: Any) -> Any:
        raise kind("no space or no answer")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "seed_positions", failing)
        with pytest.raises(kind, match=f"no space or no answer; {again}"):
            await laid_out(place, 5)
    with monkeypatch.context() as patch:  # as the lease's beat ends it, and before the first look at the moves
        patch.setattr(module, "_fence", failing)
        with pytest.raises(kind, match=f"no answer; {again}"):
            await laid_out(place, 5)
    with pytest.raises(AppRefused, match="repartition MODULE:APP --to 5"):
        await refuse_half_done(log, "tallies")
    assert (await laid_out(place, 5))["outcome"] == "done"
    await log.close()


def test_more_partitions_than_a_task_each_can_have_are_refused() -> None:
    with pytest.raises(WrongUse, match=r"--to 100001: a task for each is too much; write at most 100000"):
        module.run([TALLIES, "--to", "100001", "--plan"])


@pytest.mark.parametrize(("tasks", "shown"), [(1, "1 task was brought"), (2, "2 tasks were brought")])
def test_the_last_line_counts_the_tasks_that_went_forward(tasks: int, shown: str) -> None:
    forward = {f"0_{number}": 40 for number in range(tasks)}
    moved = {"moved": 1, "entries": 2, "bytes": 9, "seconds": 1.0, "write_s": 0.1, "forward_ms": forward, "due": {}}
    facts = {"application": "bank", "from": 2, "to": 3, "outcome": "done", "topics": [], **moved}
    assert shown in module._text(facts)


async def test_what_is_refused(place: Place) -> None:
    log = await begun(place)
    plan = await laid_out(place, 5, is_plan=True)
    assert plan["outcome"] == "plan" and plan["moved"] > 0 and plan["topics"] == ["marks", "tallies-sums-changelog"]
    assert plan["refused_for"] is None and "refused" not in module._text(plan)
    assert (await prepare(log, tallies.app)).counts()["marks"] == 2
    with pytest.raises(RefusedBySafety, match="lies by 2 partitions, and partitions are never taken away"):
        await laid_out(place, 1)
    await write(log, tallies.app, [(tallies.marks, "m1", 1, 9_000)])
    with pytest.raises(RefusedBySafety, match="1 offset of the inputs of 'tallies' is not processed"):
        await laid_out(place, 5)
    plan = await laid_out(place, 5, is_plan=True)
    assert "\nas it is now this is refused: 1 offset of the inputs of 'tallies' is not processed" in module._text(plan)
    with pytest.raises(WrongUse, match="the log knows no application 'outside'"):
        await laid_out(place, 5, OUTSIDE)
    await prepare(log, outside.app)
    with pytest.raises(RefusedBySafety, match=r"seen: local=True, so no key says"):
        await laid_out(place, 5, OUTSIDE)
    await log.close()


def test_wrong_use(console: Console) -> None:
    for words, said in ((["bank", "--to", "12"], "no MODULE:APP"), (["bank:app", "--to", "0"], "--to")):
        done = console.here("repartition", *words)
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1, done


@pytest.mark.processes
async def test_an_app_goes_on_with_more_tasks(place: Place) -> None:
    """With a re-key, a table with a route and state on disk: as if there had been six tasks from the beginning."""
    log = await place.log()
    sent = records(200, seed=41)
    await write(log, sample.app, sent)
    await place.backfill()
    state = place.folder / "state"
    before, _ = await opened(log, state, "")
    facts = await laid_out(place, 6, APP)
    assert facts["outcome"] == "done" and 0 < facts["moved"] < facts["entries"]
    assert await opened(log, place.folder / "fresh", "") == (before, {"empty"})

    prepared = await prepare(log, sample.app)
    assert {prepared.counts()[name] for name in facts["topics"]} == {6} and len(prepared.tasks()) == 12
    positions = await committed(log)
    assert all(
        at == end for (p, at), end in zip(positions.items(), (await log.ends(list(positions))).values(), strict=True)
    )
    late = [(topic, key, value, at + 10_000) for topic, key, value, at in records(150, seed=42)]
    await write(log, sample.app, late)
    life = Life(place, log, prepared)
    await life.start()
    await life.until("everything is processed", life.processed)
    assert await life.stop() == 0, life.said()
    tables, outputs = await asyncio.to_thread(driven, [*sent, *late])
    assert (await opened(log, state, ""))[0] == tables
    assert len(await read_all(log, "receipts")) == sum(outputs["receipts"].values())
    started = [row for row in read_journals(state / "sample") if row["what"] == "started"]
    held = {row["task"] for row in started if "disk" in row["source"]}  # a task without an entry has nothing on disk
    assert held >= {"0_0", "0_1", "0_2", "0_3"}, started
    assert Partition("orders", 5) in await log.positions("sample", [Partition("orders", 5)])
    await log.close()


class Failing:
    """A log that takes so many seeds, asks for the parts of each twice, and fails with the next one."""

    def __init__(self, patch: pytest.MonkeyPatch, most: int) -> None:
        self._seed, self._most = SqliteLog.seed_positions, most
        self.sizes: list[int] = []
        failing = self

        async def seeded(log: SqliteLog, *given: Any, **more: Any) -> bool:
            if len(failing.sizes) == failing._most:
                raise StateError("the disk is gone")
            parts = more.pop("parts")
            made = await asyncio.to_thread(lambda: list(parts()))
            failing.sizes.append(sum(len(records) for part in made for records in part.values()))
            return await failing._seed(log, *given, **more, parts=parts)

        patch.setattr(SqliteLog, "seed_positions", seeded)


@pytest.mark.long
async def test_what_moves_comes_in_many_transactions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is written, once, where it ends after some of them, too; an entry goes and comes in one."""
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, f"k{n}", n + 1, 10 * n) for n in range(40)])
    await place.backfill(TALLIES)
    before = await values(log)
    monkeypatch.setattr(moves, "CUT", 4)
    monkeypatch.setattr(moves, "FEW", 0)
    monkeypatch.setattr(final_records, "PART_RECORDS", 1)
    monkeypatch.setattr(module, "PARTS", 3)

    with monkeypatch.context() as patch:
        failing = Failing(patch, 3)
        with pytest.raises(StateError):
            await laid_out(place, 5)
    assert failing.sizes == [0, 6, 6]
    half = await values(log)
    assert {key: value for (_, key), value in half.items()} == {key: value for (_, key), value in before.items()}
    assert len(half) == len(before) and len(half.keys() - before.keys()) == 6, "each entry is in one place"
    with pytest.raises(AppRefused, match="repartition MODULE:APP --to 5"):
        await refuse_half_done(log, "tallies")

    with monkeypatch.context() as patch:
        failing = Failing(patch, 99)
        facts = await laid_out(place, 5)
    wrong = sum(number != partition_of(key, 5) for number, key in before)
    assert facts["entries"] == len(before) and facts["moved"] == wrong - 6 == sum(failing.sizes) // 2
    assert len(failing.sizes) > 2 and max(failing.sizes) == 6
    await refuse_half_done(log, "tallies")
    after = await values(log)
    assert {key: value for (_, key), value in after.items()} == {key: value for (_, key), value in before.items()}
    assert len(after) == len(before) and all(number == partition_of(key, 5) for number, key in after)
    assert not place.spark.sparkContext._jsc.getPersistentRDDs(), "nothing of it is kept"
    await log.close()


@pytest.mark.long
async def test_a_plan_of_what_did_not_end_shows_what_is_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some of the entries where they belong by the new count: they were said to lie by no hash of their keys."""
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, f"k{n}", n + 1, 10 * n) for n in range(40)])
    await place.backfill(TALLIES)
    for name, number in (("CUT", 4), ("FEW", 0)):
        monkeypatch.setattr(moves, name, number)
    monkeypatch.setattr(final_records, "PART_RECORDS", 1)
    monkeypatch.setattr(module, "PARTS", 3)
    with monkeypatch.context() as patch:
        Failing(patch, 3)
        with pytest.raises(StateError):
            await laid_out(place, 5)
    half = await values(log)
    plan = await laid_out(place, 5, is_plan=True)
    assert await values(log) == half
    facts = await laid_out(place, 5)
    assert plan["outcome"] == "plan" and facts["outcome"] == "done"
    assert {name: plan[name] for name in ("from", "moved", "entries", "bytes")} == {
        name: facts[name] for name in ("from", "moved", "entries", "bytes")
    }
    await log.close()


async def test_what_is_written_meanwhile_is_refused_with_nothing_changed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Spark looks for what moves a record came that lies by the number before: its state went elsewhere, without a word."""
    log = await begun(place)
    before, counts = await values(log), (await prepare(log, tallies.app)).counts()
    looked = module._moves

    async def sent() -> None:
        other = await place.log()
        await write(other, tallies.app, [(tallies.marks, "m1", 1, 9_000)])
        await other.close()

    def slow(*given: Any, **more: Any) -> Any:
        asyncio.run(sent())
        return looked(*given, **more)

    monkeypatch.setattr(module, "_moves", slow)
    with pytest.raises(RefusedBySafety, match="1 offset of the inputs of 'tallies' is not processed"):
        await laid_out(place, 5)
    await refuse_half_done(log, "tallies")
    assert (await prepare(log, tallies.app)).counts() == counts and await values(log) == before
    await log.close()


async def stopped_once_grown(place: Place, monkeypatch: pytest.MonkeyPatch) -> GroupLog:
    log = await begun(place)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "seed_positions", broken)
        with pytest.raises(StateError):
            await laid_out(place, 5)
    return log


@pytest.mark.long
async def test_records_that_came_since_it_began_are_no_end_of_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics have grown, and what produces was started again: it was to be processed first, by an app that may not start."""
    log = await stopped_once_grown(place, monkeypatch)
    before = await values(log)
    where, data = Partition("marks", partition_of(b"m1", 5)), (1).to_bytes(8, "big")
    await log.append({where: [NewRecord(b"m1", data, 9_000), NewRecord(None, data, 9_000)]})
    assert (await laid_out(place, 5))["outcome"] == "done"
    await refuse_half_done(log, "tallies")
    after = await values(log)
    assert {key: value for (_, key), value in after.items()} == {key: value for (_, key), value in before.items()}
    assert all(number == partition_of(key, 5) for number, key in after)
    await log.close()


@pytest.mark.long
async def test_a_record_by_the_number_before_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task would have no state of its key."""
    log = await stopped_once_grown(place, monkeypatch)
    right = partition_of(b"m1", 5)
    wrong = Partition("marks", (right + 1) % 5)
    at = (await log.ends([wrong]))[wrong]
    await log.append({wrong: [NewRecord(b"m1", (1).to_bytes(8, "big"), 9_000)]})
    before = await values(log)
    with pytest.raises(RefusedBySafety, match=rf"the record at {at} of {wrong}, .* belongs to partition {right} of 5"):
        await laid_out(place, 5)
    assert await values(log) == before
    await log.set_retention("marks", Retention(1))  # not forced: what is not processed stays
    with pytest.raises(RefusedBySafety, match=r"a retention, with --force"):
        await laid_out(place, 5)
    await log.set_retention("marks", Retention(1, forced=True))
    assert (await laid_out(place, 5))["outcome"] == "done"  # no instance runs that would have removed it
    assert (await log.starts([wrong]))[wrong] == at + 1 and len(await values(log)) == len(before)
    await log.close()
