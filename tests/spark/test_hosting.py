"""Instances as Spark tasks: a killed one comes back as another attempt, others go on, one more can be added, and all
end in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import WrongUse
from orchestrator.model import Settings
from pipeline.spark.hosting import SparkHandle, SparkHost, run_fleet
from pipeline.spark.source import ship
from pipeline.values.partitioner import partition_of
from state.log.protocol import GroupLog, NewRecord, Partition
from state.log.sqlite import open_sqlite
from tests.kills.receipts import Payment, app, payments
from tests.workers.test_fleet import nowhere_else
from workers.commands.cluster import Cluster
from workers.commands.consume import read_all
from workers.fleet.fleet import GRANTED, REQUEST, Fleet
from workers.fleet.presence import FLEET
from workers.journal import read_journals
from workers.prepare import prepare
from workers.spec import HOST_GOES, InstanceSpec

pytestmark = [pytest.mark.spark, pytest.mark.processes]
ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 120.0


def host_on(spark: Any) -> SparkHost:
    return SparkHost(spark, ship(spark, "tests.kills.receipts:app"))


class Life:
    """A fleet on Spark, and its log."""

    def __init__(self, folder: Path, log: GroupLog, spark: Any) -> None:
        self.log = log
        self.state = folder / "state"
        self.spec = InstanceSpec(
            app="tests.kills.receipts:app",
            application="receipts",
            instance="",
            log=f"sqlite:{folder / 'log.db'}",
            state_dir=str(self.state),
            folder=str(ROOT),
            settings=Settings(heartbeat_ms=300, session_timeout_ms=3_000, disconnect_grace_ms=300),
        )
        self.said: list[str] = []
        self.fleet = Fleet(host_on(spark), log, self.spec, self.said.append, nowhere_else)
        self.sent = 0

    async def produce(self, count: int) -> None:
        batch: dict[Partition, list[NewRecord]] = {}
        for number in range(self.sent, self.sent + count):
            key = f"a{number % 97}".encode()
            value = payments.value_codec.encode(Payment(number, 1))
            batch.setdefault(Partition("payments", partition_of(key, 8)), []).append(NewRecord(key, value, number))
        await self.log.append(batch)
        self.sent += count

    async def processed(self) -> None:
        async def done() -> bool:
            inputs = [Partition("payments", number) for number in range(8)]
            return sum((await self.log.positions("receipts", inputs)).values()) >= self.sent

        await self.until("everything is processed", done)

    async def until(self, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not await is_so():
            assert time.monotonic() < deadline, f"{what}: not after {DEADLINE_S:.0f} s; {self.said}"
            await asyncio.sleep(0.05)

    async def started_alone(self, spark: Any) -> SparkHandle:
        """i1 without its fleet, as soon as its process is known."""
        handle = await host_on(spark).start(msgspec.structs.replace(self.spec, instance="i1"))

        async def is_there() -> bool:
            return bool(self.starts("i1"))

        await self.until("i1 is there", is_there)
        return handle

    def starts(self, instance: str) -> list[dict[str, Any]]:
        return [
            row
            for row in read_journals(self.state / "receipts")
            if row["what"] == "instance" and row["instance"] == instance
        ]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_killed_added_stopped(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    life = Life(tmp_path, log, spark)
    life.fleet.claim()
    running = asyncio.create_task(life.fleet.run(2))
    await life.produce(500)
    await life.processed()

    victim = life.starts("i2")[-1]["pid"]
    workers = children(victim)
    assert len(workers) == 1 and victim != life.starts("i1")[-1]["pid"]
    os.kill(victim, signal.SIGKILL)
    await life.produce(500)
    await life.processed()

    async def back() -> bool:
        return [row["attempt"] for row in life.starts("i2")] == [0, 1]

    await life.until("i2 is back as another attempt", back)
    assert [row["attempt"] for row in life.starts("i1")] == [0]
    await life.until("the worker of the killed one is gone", gone(workers))

    await log.put_metadata("receipts", FLEET, REQUEST + "w", json.dumps({"add": 1}).encode())

    async def granted() -> bool:
        return bool(life.starts("i3")) and await log.metadata("receipts", FLEET, GRANTED + "w") is not None

    await life.until("a third instance is there", granted)
    await life.produce(500)
    await life.processed()

    pids = [life.starts(name)[-1]["pid"] for name in ("i1", "i2", "i3")]
    all_workers = [child for pid in pids for child in children(pid)]
    life.fleet.stop()
    assert await asyncio.wait_for(running, DEADLINE_S) == 0
    ended = {row["instance"] for row in read_journals(life.state / "receipts") if row["what"] == "instance ended"}
    assert ended == {"i1", "i2", "i3"}
    await life.until("no worker is left behind", gone(all_workers))
    found = Counter(int.from_bytes(r.value or b"", "big") for _, r in await read_all(log, "receipts"))
    assert found == dict.fromkeys(range(1_500), 1)
    await log.close()


def gone(pids: list[int]) -> Callable[[], Any]:
    async def check() -> bool:
        return not any(runs(pid) for pid in pids)

    return check


async def test_a_failure_reaches_the_handle_with_its_words(
    tmp_path: Path, spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    spec = Life(tmp_path, log, spark).spec
    spec = msgspec.structs.replace(spec, instance="i9", log=f"sqlite:{tmp_path / 'none.db'}")
    handle = await host_on(spark).start(spec)
    assert await asyncio.wait_for(handle.wait(), DEADLINE_S) == 2
    assert f"error: no log at {tmp_path / 'none.db'}" in capfd.readouterr().err
    await log.close()


@pytest.mark.long
async def test_killing_ends_an_instance_that_does_not_answer(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does Spark at once: cancelling is an event in its queue, and until it is handled a process that dies is a
    crash, which Spark starts again."""
    timers: list[threading.Timer] = []
    cancel = spark.sparkContext.cancelJobGroup

    def late(group: str) -> None:
        timers.append(threading.Timer(2.5, cancel, [group]))
        timers[-1].start()

    monkeypatch.setattr(spark.sparkContext, "cancelJobGroup", late)
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    life = Life(tmp_path, log, spark)
    handle = await life.started_alone(spark)
    pid = life.starts("i1")[-1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    handle.stop()
    handle.kill()
    assert await asyncio.wait_for(handle.wait(), DEADLINE_S) < 0
    assert not runs(pid)
    assert len(life.starts("i1")) == 1
    for timer in timers:
        timer.join()
    await log.close()


@pytest.mark.long
async def test_killing_ends_an_instance_whose_spark_is_gone(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    life = Life(tmp_path, log, spark)
    handle = await life.started_alone(spark)

    def gone_too(group: str) -> None:
        monkeypatch.undo()  # there is no Spark without its jobs: once it could not be asked, this one ends
        raise ConnectionError("no JVM")

    monkeypatch.setattr(spark.sparkContext, "cancelJobGroup", gone_too)
    handle.kill()
    assert await asyncio.wait_for(handle.wait(), DEADLINE_S) < 0
    await life.until("its processes are gone", gone([row["pid"] for row in life.starts("i1")]))
    await log.close()


@pytest.mark.long
async def test_an_instance_whose_host_goes_is_to_be_started_elsewhere(tmp_path: Path, spark: Any) -> None:
    """And one that Spark has started since then, on another executor, is not: what it leaves, it leaves for good."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    life = Life(tmp_path, log, spark)
    handle = await life.started_alone(spark)
    handle.host_goes(others=False)
    assert not handle.stays
    assert await asyncio.wait_for(handle.wait(), DEADLINE_S) == HOST_GOES
    ended = [row["what"] for row in read_journals(life.state / "receipts")]
    assert ended == ["instance", "instance ended"], "in order"

    handle = await host_on(spark).start(msgspec.structs.replace(life.spec, instance="i1", attempt=1))

    async def attempts(wanted: list[int]) -> bool:
        return [row["attempt"] for row in life.starts("i1")] == wanted and handle.stays

    await life.until("it is there again", partial(attempts, [0, 1]))
    pid = life.starts("i1")[-1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    handle.host_goes(others=True)
    os.kill(pid, signal.SIGKILL)  # the machine was gone before it had handed over
    await life.until("Spark has started it again", partial(attempts, [0, 1, 2]))
    os.kill(life.starts("i1")[-1]["pid"], signal.SIGTERM)
    assert await asyncio.wait_for(handle.wait(), DEADLINE_S) == 0
    await log.close()


@pytest.mark.long
async def test_killing_ends_an_instance_that_has_not_begun(tmp_path: Path, spark: Any) -> None:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, app)
    life = Life(tmp_path, log, spark)
    for name in ("i1", "i2", "i3"):
        handle = await host_on(spark).start(msgspec.structs.replace(life.spec, instance=name))
        handle.kill()
        assert await asyncio.wait_for(handle.wait(), DEADLINE_S) < 0
        assert not any(runs(row["pid"]) for row in life.starts(name))
    await log.close()


def test_a_file_is_no_log_for_other_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = InstanceSpec("a:app", "a", "", f"sqlite:{tmp_path / 'log.db'}", str(tmp_path))
    with pytest.raises(WrongUse, match="name a Kafka log"):
        run_fleet(spec, 2, Cluster("spark://elsewhere:7077"))


def test_machines_of_a_cluster_need_secret_and_tls(tmp_path: Path) -> None:
    spec = InstanceSpec("a:app", "a", "", "kafka://127.0.0.1:1", str(tmp_path), secret_file="a.secret")
    with pytest.raises(WrongUse, match="--tls-cert, --tls-key that lie at the same path"):
        run_fleet(spec, 2, Cluster("spark://elsewhere:7077"))


def test_which_masters_span_machines() -> None:
    here = ("local[2]", "local-cluster[1,2,1024]", "spark://127.0.0.1:7077", "spark://localhost:7077", "")
    assert not any(Cluster(master).spans_machines for master in here)
    assert all(Cluster(master).spans_machines for master in ("spark://10.0.0.5:7077", "yarn", "k8s://https://a:6443"))
