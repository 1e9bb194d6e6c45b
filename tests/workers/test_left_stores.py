"""Stores on disk that are none of the log as it is now: who reads a table while nothing runs passes over them, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RefusedBySafety
from pipeline.spark.live_stores import Copy, copies, described
from pipeline.time.stored_form import StoredForm
from state import history
from state.directory import StateDirectory
from state.errors import DirectoryUnusable
from state.history import begin
from state.left_stores import left_stores
from state.log.group_store import Lease
from state.log.memory import MemoryLog
from state.log.protocol import GroupLog, NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite
from state.store.rocksdb import RocksDbStore
from tests.state.permissions import as_any_user
from tests.workers.test_restores_at_once import app_of
from workers.commands.reset import _alone
from workers.commands.table_pairs import Wanted, of_disk
from workers.prepare import prepare

PART = Partition("app-sums-changelog", 0)
FORM = StoredForm({"form": {"kind": "table"}, "value_codec": "bytes"})
WANTED = Wanted(("0_0",), "sums", b"", None, None, FORM)
FOREIGN = {
    "what another task has": ({"partition": "1"}, 2, "it is of partition 1 of its changelog, not of 0"),
    "a reset on another machine": ({"topic_id": "of the changelog before"}, 2, "deleted and made again"),
    "what the log has lost": ({}, 9, "the log lost records it has"),
    "what the log has lost and gone on without": ({history.STAMP: "first"}, 3, "restored from an older copy"),
}


async def made(folder: Path) -> GroupLog:
    """A log whose second term began at 2 of the changelog, which ends at 4."""
    log = await open_sqlite(folder / "log.db", create=True)
    await log.create_topic(TopicSpec(PART.topic, 1, "changelog"))
    lease: Lease | None = None
    for new_id in ("first", "second"):
        lease = await log.acquire("app", new_id, "a:1", lease)
        assert lease is not None
        await begin(log, lease, [PART], new_id)
        await log.append({PART: [NewRecord(b"k", b"log", 0)] * 2})
    return log


async def store(log: GroupLog, path: Path, value: bytes, offset: int, stamp: dict[str, str]) -> None:
    topic_id = (await log.topics([PART.topic]))[PART.topic].topic_id
    made_ = RocksDbStore(path, stamp={"log_id": log.log_id, "topic_id": topic_id, **stamp})
    made_.write({b"k": value}, offset)
    made_.close()


@pytest.mark.parametrize("what", FOREIGN)
async def test_what_a_start_would_wipe_is_not_read(tmp_path: Path, what: str) -> None:
    """It stands further on than the good one, so its values were taken for the table's."""
    log, state, (stamp, offset, why) = await made(tmp_path), tmp_path / "state/app", FOREIGN[what]
    facts, said = {"changelog_topic": PART.topic}, list[str]()
    await store(log, state / "i2/0_0/sums", b"other", offset, stamp)

    async def pairs() -> list[Any]:
        return [(row.key, row.value) async for row in await of_disk(log, state, facts, WANTED, said.append)]

    with pytest.raises(RefusedBySafety, match=why):
        await pairs()
    await store(log, state / "i1/0_0/sums", b"good", 1, {})
    assert await pairs() == [(b"k", b"good")] and "lacks the last 3 offsets" in said[-1]

    problems: list[str] = []
    listed = [Copy(name, "on disk", "0_0", "sums", str(state / name / "0_0/sums"), 0) for name in ("i1", "i2")]
    judge = await left_stores(log, "app", [PART.topic])
    found = described(listed, log.log_id, problems, judge, {"sums": PART.topic})
    assert [one.instance for one in found] == ["i1"] and [why in line for line in problems] == [True]
    await log.close()


def closed(folder: Path) -> StateDirectory:
    """The state of an instance with a task whose folder is another user's."""
    directory = StateDirectory(folder, "app", "i1")
    directory.lock("0_0").release()
    directory.table("0_0", "sums").mkdir()
    directory.task("0_0").chmod(0)
    return directory


def test_state_that_may_not_be_looked_into_refuses_a_reset_before_it_begins(tmp_path: Path) -> None:
    """It was passed over, and found once topics and positions were gone: a reset that began and did not end."""
    directory = closed(tmp_path)
    with as_any_user(), pytest.raises(DirectoryUnusable, match="check its permissions"), _alone("app", tmp_path):
        pass
    directory.task("0_0").chmod(0o700)


async def test_state_that_may_not_be_looked_into_is_missing_from_no_audit(tmp_path: Path) -> None:
    """The audit said nothing of it, and that the others are as they should be."""
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app_of(1))
    directory = closed(tmp_path)
    with as_any_user(), pytest.raises(DirectoryUnusable, match="check its permissions"):
        async with copies(log, prepared, None, directory.path.parent):
            pass
    directory.task("0_0").chmod(0o700)


async def test_a_table_that_may_not_be_looked_into_is_named(tmp_path: Path) -> None:
    log, state = await made(tmp_path), tmp_path / "state/app"
    await store(log, state / "i1/0_0/sums", b"good", 4, {})
    for path, mode in ((state / "i1/0_0/sums", 0), (state / "i1/0_0", 0o100)):
        path.chmod(mode)
        with as_any_user(), pytest.raises(RefusedBySafety, match=r"check its .*restores what is damaged"):
            await of_disk(log, state, {"changelog_topic": PART.topic}, WANTED, print)
        path.chmod(0o700)
    await log.close()
