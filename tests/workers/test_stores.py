"""Which snapshot a store is restored from: one of this history of the log."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from orchestrator.model import TaskId
from state import history, manifest, snapshot
from state.directory import StateDirectory
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord
from state.manifest import ScopeManifest, SnapshotManifest
from state.snapshot import Origin
from tests.workers.test_restore_loop import app
from workers.prepare import Prepared, prepare
from workers.tasks.stores import StoreOpener

TASK = TaskId(0, 0)
OFFSET = 10


def write_snapshot(root: Path, log: MemoryLog, prepared: Prepared, stamp: str) -> None:
    changelog, now_ms = prepared.changelog(TASK, "last"), time.time_ns() // 1_000_000
    topic_id = prepared.topics[changelog.topic].topic_id
    origin = Origin(log.log_id, changelog.topic, topic_id, OFFSET, now_ms)
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
