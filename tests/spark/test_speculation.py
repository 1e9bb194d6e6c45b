"""Spark's own `spark.speculation`: a host stands still in the middle of each job, its tasks are run again on the other one, and what
comes of it is exact. And instances, of which there must not be two: for them it is off."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext

from orchestrator.clocks import wall_ms
from orchestrator.errors import WrongUse
from pipeline.spark.backfill import backfill
from pipeline.spark.hosting import run_fleet
from pipeline.spark.properties import properties
from pipeline.spark.repartition import repartition
from pipeline.spark.session import spark_session, stop
from pipeline.spark.snapshotting import take
from pipeline.spark.verifying import Wanted, audit
from state import snapshot
from state.log.protocol import GroupLog, Partition, TopicSpec
from state.log.sqlite import open_sqlite
from tests.kafka.place import Place
from tests.spark import tallies
from tests.spark.two_hosts import FIRST, SPECULATES, TwoHosts, second_attempts, until_ended
from workers.commands.cluster import Cluster
from workers.commands.consume import read_all
from workers.prepare import prepare
from workers.spec import InstanceSpec

ROOT = Path(__file__).resolve().parent.parent.parent
TALLIES = "tests.spark.tallies:app"
MARKS, KEYS = 400_000, 40_000


def test_jobs_may_have_it_and_instances_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = {"spark.speculation": "true"}
    assert properties(Cluster("local[2]", wanted), tmp_path, "")["spark.speculation"] == "true"
    spec = InstanceSpec("a:app", "a", "", f"sqlite:{tmp_path}/log.db", str(tmp_path))
    with pytest.raises(WrongUse, match="two instances of one name would run; leave it out with --on spark"):
        run_fleet(spec, 2, Cluster("spark://elsewhere:7077", wanted))
    (tmp_path / "spark-defaults.conf").write_text("spark.speculation true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    given: list[Cluster] = []
    monkeypatch.setattr("pipeline.spark.hosting._check_reach", lambda spec, cluster: given.append(cluster))
    monkeypatch.setattr("pipeline.spark.hosting.absolute_log", refused)
    with pytest.raises(WrongUse, match="no further"):
        run_fleet(spec, 2, Cluster("spark://elsewhere:7077"))
    assert properties(given[0], tmp_path, "")["spark.speculation"] == "false"
    [line] = caplog.messages
    assert line == "spark.speculation of spark-defaults.conf is off here: two instances of one name would run"


def refused(url: str) -> str:
    raise WrongUse("no further")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoHosts]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SPARK_LOCAL_IP", FIRST)
    home = tmp_path / "hosts"
    home.mkdir()
    made = TwoHosts(home)
    try:
        yield made
    finally:
        made.take_down()


@pytest.fixture
def session(hosts: TwoHosts, tmp_path: Path) -> Iterator[Any]:
    assert SparkContext._active_spark_context is None, (
        "run these tests alone: this process has a session of another master"
    )
    (tmp_path / "events").mkdir()
    conf = {**SPECULATES, "spark.eventLog.dir": str(tmp_path / "events")}
    made = spark_session("speculation", Cluster(hosts.master, conf), settings={"spark.sql.shuffle.partitions": "4"})
    yield made
    stop(made)


def written_marks(folder: Path) -> dict[str, list[str]]:
    """The history of all tests here, in parts enough for two hosts; of now, for a broker deletes what is old."""
    now = wall_ms()
    columns = [
        pa.array(f"k{number % KEYS}" for number in range(MARKS)),
        pa.array([1] * MARKS),
        pa.array(range(now - MARKS, now)),
    ]
    path = str(folder / "marks.parquet")
    pq.write_table(pa.table(columns, ["key", "value", "timestamp_ms"]), path, row_group_size=MARKS // 8)
    return {"marks": [path]}


class Writes:
    """Whether records of a transaction that is open are in a log, for a thread."""

    def __init__(self, log: GroupLog, partitions: list[Partition]) -> None:
        self._begun = threading.Event()
        self._looking = asyncio.create_task(self._look(log, partitions))

    async def _look(self, log: GroupLog, partitions: list[Partition]) -> None:
        while await log.written(partitions) == await log.ends(partitions):
            continue
        self._begun.set()

    def __call__(self) -> bool:
        return self._begun.is_set()


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
async def opened(request: Any, tmp_path: Path) -> AsyncIterator[tuple[str, GroupLog]]:
    if request.param == "embedded":
        log = await open_sqlite(tmp_path / "log.db", create=True)
        yield f"sqlite:{tmp_path / 'log.db'}", log
        await log.close()
    else:
        place = Place()
        yield f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}", await place.open()
        await place.close()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
async def test_every_job_beside_a_host_that_stands_still(
    hosts: TwoHosts, session: Any, opened: tuple[str, GroupLog], tmp_path: Path
) -> None:
    """In a backfill from when tasks compute, on Kafka from when they write to it."""
    history = written_marks(tmp_path)
    url, log = opened
    root, events = tmp_path / "snapshots", tmp_path / "events"
    attempts = Counter[str]()

    async def beside(name: str, job: Any, when: Any = lambda: True) -> Any:
        before = second_attempts(events)
        with hosts.second_stands_still(when) as stopped:
            found = await job
        await asyncio.to_thread(until_ended, stopped)
        attempts[name] = second_attempts(events) - before
        return found

    def all_write() -> bool:
        return len(list(root.glob(".*.work/.attempts-*/0_*"))) >= 3

    await log.create_topic(TopicSpec("marks", 4))
    await prepare(log, tallies.app)
    known = await log.topics(["seen", tallies.sums.changelog])
    written = [Partition(name, number) for name, info in known.items() for number in range(info.partitions)]
    job = backfill(TALLIES, url, root, history=history, say=print, session=session)
    facts = await beside("backfill", job, Writes(log, written) if url.startswith("kafka") else all_write)
    assert facts["records_in"] == MARKS and facts["outputs"] == {"seen": MARKS}
    seen = Counter(record.key for _, record in await read_all(log, "seen"))
    assert len(seen) == KEYS and set(seen.values()) == {MARKS // KEYS}
    expected = {f"k{number}".encode(): (MARKS // KEYS).to_bytes(8, "big") for number in range(KEYS)}
    assert {record.key: record.value for _, record in await read_all(log, tallies.sums.changelog)} == expected
    assert [path.name for path in root.iterdir()] == [facts["snapshot"]], "an attempt that came too late left something"
    assert not list((root / facts["snapshot"]).rglob(".*"))

    made = await beside("snapshot", take("tallies", url, tmp_path / "taken", session=session))
    assert made["entries"] == KEYS and snapshot.verify(tmp_path / "taken", made["snapshot"])
    assert not list((tmp_path / "taken").rglob(".*"))

    wanted = Wanted(history=history)
    checked = await beside("audit", audit(TALLIES, url, wanted, say=print, session=session))
    assert checked["checks"] and all(check["ok"] for check in checked["checks"]), checked["checks"]

    moved = await beside("repartition", repartition(TALLIES, url, 6, tmp_path / "state", session=session))
    assert moved["outcome"] == "done" and moved["entries"] == KEYS
    after: dict[tuple[int, bytes | None], bytes | None] = {}
    for where, record in await read_all(log, tallies.sums.changelog):
        after[where.number, record.key] = record.value
    left = [(key, value) for (_, key), value in after.items() if value is not None]
    assert len(left) == KEYS and dict(left) == expected
    assert (await prepare(log, tallies.app)).counts()["marks"] == 6
    assert attempts["backfill"] and attempts["snapshot"], "Spark made second attempts"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
async def test_a_machine_is_lost_while_tasks_compute(hosts: TwoHosts, session: Any, tmp_path: Path) -> None:
    """What it has read and packed is read again on the other one, and Spark takes it for the same: else it ends the job."""
    history, root = written_marks(tmp_path), tmp_path / "snapshots"
    log = await open_sqlite(tmp_path / "log.db", create=True)
    try:
        await log.create_topic(TopicSpec("marks", 8))  # two rounds of tasks, so that some have ended by then
        url = f"sqlite:{tmp_path / 'log.db'}"
        job = backfill(TALLIES, url, root, history=history, say=print, session=session)
        running = asyncio.create_task(job)
        await asyncio.to_thread(hosts.lose_second, lambda: any(root.glob(".*.work/0_*/facts.json")))
        assert not running.done()
        facts = await running
        assert facts["records_in"] == MARKS and facts["profile"]["read"] > 0 < facts["profile"]["encode"]
        seen = Counter(record.key for _, record in await read_all(log, "seen"))
        assert len(seen) == KEYS and set(seen.values()) == {MARKS // KEYS}
    finally:
        await log.close()
