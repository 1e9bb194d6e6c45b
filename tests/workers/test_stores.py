"""Which snapshot a store is restored from, one of this history of the log; and which store is too old to go on."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import App
from orchestrator.model import TaskId
from state import history, manifest, snapshot
from state.changelog import apply
from state.directory import StateDirectory
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord
from state.manifest import ScopeManifest, SnapshotManifest
from state.private import make_folder
from state.snapshot import Origin
from state.store.rocksdb import RocksDbStore
from tests.workers.test_restore_loop import app
from workers.prepare import Prepared, prepare
from workers.surroundings import REAL
from workers.tasks.stores import Opened, StoreOpener

TASK = TaskId(0, 0)
OFFSET = 10


def write_snapshot(root: Path, log: MemoryLog, prepared: Prepared, stamp: str) -> None:
    changelog, now_ms = prepared.changelog(TASK, "last"), time.time_ns() // 1_000_000
    topic_id = prepared.topics[changelog.topic].topic_id
    origin = Origin(log.log_id, changelog.topic, topic_id, OFFSET, now_ms)
    make_folder(root / "s" / "0_0")
    table = snapshot.write_table(root / "s" / "0_0", "last", [(b"k", b"of the snapshot")], origin)
    sums = {"0_0": manifest.write_scope(root / "s" / "0_0", ScopeManifest("0_0", log.log_id, now_ms, (table,)))}
    counts = {changelog.topic: 1}
    manifest.publish(root, SnapshotManifest("s", app.id, log.log_id, now_ms, counts, sums, history=stamp))


@pytest.mark.parametrize(
    ("stamp", "written", "why"),
    [
        ("one", OFFSET, None),
        ("", OFFSET, None),
        ("lost", OFFSET, "snapshot s is not used: it was written with another history of this log"),
        ("one", OFFSET - 1, f"it stands at {OFFSET}, and the log went on from {OFFSET - 1} without what it has"),
    ],
    ids=["of this history", "of a version without histories", "of another", "beyond where the next term began"],
)
async def test_a_snapshot_of_another_history_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stamp: str, written: int, why: str | None
) -> None:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app)
    changelog = prepared.changelog(TASK, "last")
    lease = await log.acquire(app.id, "i1", "", None)
    assert lease is not None
    await history.begin(log, lease, [changelog], "one")
    await log.append({changelog: [NewRecord(b"k%d" % n, b"v", n) for n in range(written)]})
    lease = await log.acquire(app.id, "i2", "", lease)
    assert lease is not None
    await history.begin(log, lease, [changelog], "two")
    await log.append({changelog: [NewRecord(b"k", b"later", n) for n in range(5)]})
    write_snapshot(tmp_path / "snapshots", log, prepared, stamp)
    opener = StoreOpener(log, prepared, StateDirectory(tmp_path, app.id, "i1"), str(tmp_path / "snapshots"))
    with caplog.at_level(logging.WARNING):
        opened = (await opener.open(TASK))["last"]
    found = (opened.source, opened.position)
    opened.store.close()
    assert found == (("snapshot", OFFSET) if why is None else ("empty", 0))
    assert [why in line for line in caplog.messages] == [True] if why is not None else not caplog.messages


async def test_a_snapshot_that_is_pruned_once_it_was_read_costs_a_replay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app)
    changelog = prepared.changelog(TASK, "last")
    await log.append({changelog: [NewRecord(b"k", b"later", n) for n in range(OFFSET + 5)]})
    write_snapshot(tmp_path / "snapshots", log, prepared, "")

    async def pruned(_bytes: int, _position: int) -> None:
        assert manifest.prune(tmp_path / "snapshots", 0) == ["s"]

    opener = StoreOpener(log, prepared, StateDirectory(tmp_path / "state", app.id, "i1"), str(tmp_path / "snapshots"))
    opened = await opener.open(TASK, pruned)
    assert opened["last"].source == "empty" and "was removed while the snapshot was read" in caplog.text
    opened["last"].store.close()


HOUR_MS = 3_600_000


@pytest.mark.parametrize("behind_ms", [0, 2 * HOUR_MS], ids=["", "clock behind"])
@pytest.mark.parametrize("restored", [2, 3], ids=["while it was behind", "when it held all"])
async def test_a_store_that_may_have_missed_a_deletion_begins_anew(
    tmp_path: Path, restored: int, behind_ms: int
) -> None:
    """Its deletions are kept for 5 hours: a store that went on to read 4 hours ago, and last held all 6 hours ago, is not
    to be continued, also where it is said to be 4 hours old by the clock of its machine; one that holds all is, however old."""
    now = [0]
    wrong = [0]
    log = MemoryLog(markers=False, clock_ms=lambda: now[0], delete_retention_ms=5 * HOUR_MS)
    prepared = await prepare(log, app)
    changelog = prepared.changelog(TASK, "last")
    around = replace(
        REAL,
        wall_ms=lambda: now[0] - wrong[0],
        open_store=lambda path, stamp, budget: RocksDbStore(path, stamp=stamp, cache=budget, clock_ms=lambda: now[0]),
    )

    async def opened() -> Opened:
        opener = StoreOpener(log, prepared, StateDirectory(tmp_path, app.id, "i1"), "", around)
        return (await opener.open(TASK))["last"]

    async def restore(one: Opened, until: int) -> None:
        reader = log.reader()
        reader.add(changelog, one.store.offset)
        while one.store.offset < until:
            for part in await reader.poll(max_bytes_per_partition=1, wait_ms=0):
                apply(one.store, part)
        await reader.close()

    now[0] = HOUR_MS
    for key in (b"gone", b"other"):
        await log.append({changelog: [NewRecord(key, b"1", 0)]})
    one = await opened()
    await restore(one, 1)
    one.store.close()
    now[0] = 2 * HOUR_MS - 1
    await log.append({changelog: [NewRecord(b"gone", None, 0)]})
    await log.compact(changelog.topic)
    now[0] = 3 * HOUR_MS
    one = await opened()
    await restore(one, restored)
    one.store.close()
    now[0] = 7 * HOUR_MS
    assert (await log.compact(changelog.topic)).removed == 1  # the deletion
    wrong[0] = behind_ms
    one = await opened()
    assert one.position == (0 if restored < 3 else 3)
    await restore(one, 3)
    assert one.store.get(b"gone") is None
    one.store.close()


async def test_the_store_of_another_task_is_none_of_this_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wide = App("wide", partitions=2)
    given = wide.topic("given", key=str, value=str)
    last = wide.table("last", key=str, value=str)
    wide.processor(given, last)(lambda record, last: None)
    log = MemoryLog(markers=False)
    prepared = await prepare(log, wide)
    directory = StateDirectory(tmp_path, wide.id, "i1")
    opener = StoreOpener(log, prepared, directory, "")
    for number in range(2):
        await log.append({prepared.changelog(TaskId(0, number), "last"): [NewRecord(b"k%d" % number, b"v", 0)]})
        store = (await opener.open(TaskId(0, number)))["last"].store
        store.write({b"k%d" % number: b"v"}, 1)
        store.close()
    shutil.rmtree(directory.task("0_1"))
    shutil.copytree(directory.task("0_0"), directory.task("0_1"))
    with caplog.at_level(logging.WARNING):
        found = (await opener.open(TaskId(0, 1)))["last"]
    assert (found.source, found.store.get(b"k0")) == ("empty", None)
    assert "it is of partition 0 of its changelog, not of 1: its folder was copied or renamed" in caplog.text
    found.store.close()
