"""An audit of an app that is busy: what waits behind a re-key is not missed in its tables, and nothing else is overlooked."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.app import App
from pipeline.spark import under_way, verifying
from pipeline.spark.rows import ROWS, Row, table_of
from pipeline.spark.under_way import take_out
from pipeline.spark.verifying import Wanted, audit, verify
from pipeline.values.partitioner import partition_of
from state.log.group_store import OwnerRecord
from state.log.protocol import GroupLog, NewRecord, Partition, TaskCommit
from tests.often import often
from tests.spark import numbered_pages, waiting
from tests.spark.test_backfill import ROOT, Place, write
from workers.prepare import prepare

APP, REKEY, CHANGELOG = "tests.spark.waiting:app", "waiting-by-page-repartition", "waiting-pages-changelog"
PAGES = ("p0", "p1", "p2")


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Place:
    return Place(tmp_path, spark)


def page(number: int) -> str:
    return PAGES[number % 3]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    """A log in which 40 clicks are history."""
    made = Place(tmp_path_factory.mktemp("history"), spark)

    async def compute() -> None:
        log = await made.log()
        await write(log, waiting.app, [(waiting.clicks, f"u{n}", page(n), 10 * n) for n in range(40)])
        await made.backfill(APP)
        await log.close()

    with pytest.MonkeyPatch.context() as home:
        home.chdir(ROOT)
        asyncio.run(compute())
    return made.path


@pytest.fixture
def begun(place: Place, history: Path) -> Place:
    """A place with a copy of it."""
    shutil.copy(history, place.path)
    return place


async def busy(place: Place, *, altered: bool = False) -> GroupLog:
    """After the history, of 20 clicks more all are re-keyed, and those of p0 counted."""
    log = await place.log()
    later = [(waiting.clicks, f"u{n}", page(n), 10 * n) for n in range(40, 60)]
    await write(log, waiting.app, later)
    await may_write(log, waiting.app)
    sent: dict[Partition, list[NewRecord]] = {}
    for number in sorted(range(40, 60), key=lambda number: page(number) != "p0"):
        key = page(number).encode()
        headers = (("trace", b"t%d" % (10 * number % 5)),) if 10 * number % 2 else ()
        value = b"another" if altered and number == 59 else key
        sent.setdefault(Partition(REKEY, partition_of(key, 2)), []).append(NewRecord(key, value, 10 * number, headers))
    clicks = [Partition("clicks", number) for number in range(2)]
    ends = await log.ends(clicks)
    counted = sum(page(number) == "p0" for number in range(60))
    where = partition_of(b"p0", 2)
    done = sum(page(number) == "p0" for number in range(40, 60))
    await log.commit(
        "waiting",
        "w",
        [
            TaskCommit("0_0", 1, sent, {clicks[0]: ends[clicks[0]]}),
            TaskCommit("0_1", 1, {}, {clicks[1]: ends[clicks[1]]}),
            TaskCommit(
                f"1_{where}",
                1,
                {Partition(CHANGELOG, where): [NewRecord(b"p0", counted.to_bytes(8, "big"), 580)]},
                {Partition(REKEY, where): done},
            ),
        ],
    )
    return log


async def may_write(log: GroupLog, app: App) -> None:
    """The writer w, for every task."""
    lease = await log.acquire(app.id, "w", "", await log.lease(app.id))
    assert lease is not None
    scopes = [str(task.id) for task in (await prepare(log, app)).tasks()]
    await log.record_owners(lease, [OwnerRecord(scope, 1, "i1", "w", lease.term) for scope in scopes])
    await log.open_writer(app.id, "w")


@pytest.mark.long
@pytest.mark.parametrize("second", often((2, 3), 3))
@pytest.mark.spark
async def test_numbers_that_came_in_another_order_than_by_time(place: Place, second: int) -> None:
    """Two tasks send on a click each, and the later one comes first. A number that is wrong is found all the same."""
    log, page = await place.log(), b"p0"
    one, other = (next(f"u{n}" for n in range(99) if partition_of(b"u%d" % n, 2) == part) for part in (0, 1))
    await write(
        log, numbered_pages.app, [(numbered_pages.clicks, one, "p0", 10), (numbered_pages.clicks, other, "p0", 20)]
    )
    await may_write(log, numbered_pages.app)
    where = partition_of(page, 2)
    rekeyed, pages = (Partition(f"numbered-{name}", where) for name in ("by-page-repartition", "pages-changelog"))
    numbers = [NewRecord(page, number.to_bytes(8, "big"), at_ms) for number, at_ms in ((1, 20), (second, 10))]
    parts = [
        TaskCommit(
            "0_0", 1, {rekeyed: [NewRecord(page, page, 20), NewRecord(page, page, 10)]}, {Partition("clicks", 0): 1}
        ),
        TaskCommit("0_1", 1, {}, {Partition("clicks", 1): 1}),
        TaskCommit(
            f"1_{where}",
            1,
            {pages: [NewRecord(page, (2).to_bytes(8, "big"), 20)], Partition("numbers", where): numbers},
            {rekeyed: 2},
        ),
    ]
    await log.commit("numbered", "w", parts)
    facts = await audit(
        "tests.spark.numbered_pages:app", place.url, Wanted(), say=place.said.append, session=place.spark
    )
    [found] = [check for check in facts["checks"] if check["check"].startswith("outputs numbers")]
    assert found["ok"] == (second == 2) == found["check"].endswith("times are not compared)"), facts
    assert [check for check in facts["checks"] if not check["ok"]] == ([] if second == 2 else [found])
    await log.close()


@pytest.mark.spark
async def test_what_waits_behind_a_rekey_is_not_missed(begun: Place) -> None:
    """A verification is an audit that is not content with what nothing has processed yet."""
    log = await busy(begun)
    checks = await verify(APP, begun.url, say=begun.said.append, session=begun.spark)
    assert [(c["check"], c["found"]) for c in checks if not c["ok"]] == [("inputs are processed to their ends", 14)]
    assert [check["found"] for check in checks if check["check"] == verifying.UNDER_WAY] == [14]
    await log.close()


@pytest.mark.long
@pytest.mark.spark
async def test_what_waits_and_is_wrong_is_found(begun: Place) -> None:
    log = await busy(begun, altered=True)
    facts = await audit(APP, begun.url, Wanted(), say=begun.said.append, session=begun.spark)
    wrong = {check["check"]: check for check in facts["checks"] if not check["ok"]}
    assert set(wrong) == {verifying.UNDER_WAY, "table pages: every key"}
    assert (wrong[verifying.UNDER_WAY]["expected"], wrong[verifying.UNDER_WAY]["found"]) == (14, 13)
    await log.close()


@pytest.mark.spark
@pytest.mark.parametrize("module, limit", ((verifying, "MOST"), (under_way, "MOST_BYTES")))
async def test_more_than_memory_holds_is_not_taken_out(
    begun: Place, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str
) -> None:
    """Of records that are long there were too many below a million."""
    monkeypatch.setattr(module, limit, 13, raising=False)
    log = await busy(begun)
    facts = await audit(APP, begun.url, Wanted(), say=begun.said.append, session=begun.spark)
    assert [(c["check"], c["found"]) for c in facts["checks"] if not c["ok"]] == [
        ("re-keyed records are all processed", 14)
    ]
    await log.close()


def sent_file(path: Path, rows: list[tuple[int, bytes, int]]) -> Path:
    """Partition, key and time of each."""
    with pq.ParquetWriter(path, ROWS) as into:
        for pid in sorted({pid for pid, _, _ in rows}):
            listed = [
                Row(pid, at, "t", 0, number, at, key, b"v", None)
                for number, (one, key, at) in enumerate(rows)
                if one == pid
            ]
            into.write_table(table_of(listed))
    return path


def listed(path: Path) -> list[tuple[int, bytes, int, int]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return [(row["pid"], row["key"], row["timestamp_ms"], row["seq"]) for row in found]


def test_of_records_that_are_alike_the_last_ones_go(tmp_path: Path) -> None:
    one = sent_file(tmp_path / "one.parquet", [(0, b"a", 5), (0, b"b", 5), (0, b"a", 5), (1, b"a", 5), (0, b"a", 6)])
    other = sent_file(tmp_path / "other.parquet", [(0, b"a", 5), (1, b"c", 7)])
    wanted = Counter({(0, b"a", b"v", None, 5): 2, (1, b"c", b"v", None, 7): 1, (1, b"d", b"v", None, 7): 3})
    assert take_out([one, other], wanted, is_timed=True) == 3, "those of d are not there"
    assert listed(one) == [(0, b"a", 5, 0), (0, b"b", 5, 1), (0, b"a", 6, 4), (1, b"a", 5, 3)]
    assert listed(other) == []
    groups = pq.ParquetFile(one).metadata
    assert [groups.row_group(n).column(0).statistics.min for n in range(groups.num_row_groups)] == [0, 1]


def test_times_are_looked_at_where_they_are_known(tmp_path: Path) -> None:
    one = sent_file(tmp_path / "one.parquet", [(0, b"a", 5), (0, b"a", 6)])
    assert take_out([one], Counter({(0, b"a", b"v", None, 0): 1}), is_timed=False) == 0
    assert listed(one) == [(0, b"a", 5, 0)]
    assert pq.ParquetFile(one).schema_arrow.equals(pa.schema(ROWS))
