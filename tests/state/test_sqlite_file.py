"""The file of a SQLite log: what it says when it is missing, foreign, damaged, full, locked, replaced or closed."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from state.errors import LogBusy, LogDamaged, LogFull, LogMissing, LogUnusable, StateError
from state.log import base, compaction
from state.log.batches import decode
from state.log.group_store import AppMetadata, MetadataKind, OwnerRecord
from state.log.protocol import NewRecord, Partition, Retention, StoredRecord, TaskCommit, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.log.sqlite_backup import backup
from state.log.sqlite_check import are_of_indexes, problems
from tests.small_disk import small

__all__ = ["small"]

T0 = Partition("t", 0)
RECORD = NewRecord(b"k", b"v", 0)


async def made(path: Path, kind: str = "plain", **settings: int) -> SqliteLog:
    log = await open_sqlite(path, create=True, **settings)  # type: ignore[arg-type]
    await log.create_topic(TopicSpec("t", 1, kind))
    return log


async def read(log: SqliteLog) -> list[StoredRecord]:
    reader = log.reader()
    reader.add(T0, 0)
    return [record for got in await reader.poll(max_bytes_per_partition=1 << 30) for record in decode(got.data, 0)]


async def test_a_log_is_what_it_was_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "log with #? %41.db"
    log = await made(path)
    await log.append({T0: [RECORD]}, metadata=AppMetadata("app", MetadataKind("kind"), "key", b"n"))
    await log.close()
    await log.close()
    again = await open_sqlite(path, create=False, synchronous="FULL")
    assert again.log_id == log.log_id
    assert await again.ends([T0]) == {T0: 1}
    assert await again.metadata("app", MetadataKind("kind"), "key") == b"n"
    other = await made(tmp_path / "other.db")
    assert other.log_id != log.log_id
    await again.close()
    await other.close()


async def test_a_missing_log_is_not_made_by_who_only_reads(tmp_path: Path) -> None:
    with pytest.raises(LogMissing, match=r"no log at .*nowhere\.db"):
        await open_sqlite(tmp_path / "nowhere.db", create=False)
    assert not (tmp_path / "nowhere.db").exists()


async def test_a_log_that_is_being_made_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()  # what a reader finds between the making of the file and that of its tables
    reading = asyncio.create_task(open_sqlite(path, create=False))
    made_ = await open_sqlite(path, create=True)
    read = await reading
    assert read.log_id == made_.log_id
    await read.close()
    await made_.close()


async def test_what_is_no_log_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes, not a database\n" * 100)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("create table mine (a)")
    connection.close()
    (tmp_path / "folder.db").mkdir()
    for path in (text, foreign, tmp_path / "folder.db"):
        before = path.read_bytes() if path.is_file() else b""
        for create in (True, False):
            with pytest.raises(LogUnusable, match=path.name):
                await open_sqlite(path, create=create)
        assert (path.read_bytes() if path.is_file() else b"") == before
    (tmp_path / "empty.db").touch()
    with pytest.raises(LogUnusable, match="is empty"):
        await open_sqlite(tmp_path / "empty.db", create=False)


async def test_a_newer_format_is_named(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db")
    await log.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.execute("pragma user_version=2")
    connection.close()
    with pytest.raises(LogUnusable, match="has format 2, this version reads 1"):
        await open_sqlite(tmp_path / "log.db", create=True)


async def test_an_unknown_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="NORMAL or FULL"):
        await open_sqlite(tmp_path / "log.db", create=True, synchronous="OFF")  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
async def test_what_lies_beside_it_and_goes_away_is_noticed(tmp_path: Path, ending: str) -> None:
    log = await made(tmp_path / "log.db")
    await log.append({T0: [RECORD]})
    (tmp_path / f"log.db{ending}").unlink()
    with pytest.raises(LogUnusable, match=f"log.db{ending} beside it, was deleted or replaced"):
        await log.append({T0: [RECORD]})
    with pytest.raises(LogUnusable, match="deleted or replaced"):
        await log.ends([T0])
    await log.close()
    again = await open_sqlite(tmp_path / "log.db", create=False)
    assert len(await read(again)) == 1
    await again.close()


HOLDS = """
import asyncio, sys
from pathlib import Path
from state.log.sqlite import open_sqlite

async def main():
    log = await open_sqlite(Path(sys.argv[1]), create=False)
    print("open", flush=True)
    sys.stdin.readline()
    await log.close()

asyncio.run(main())
"""


@contextmanager
def held_open(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the log open, and ends in order."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], text=True, **pipes) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "open\n"
        yield other
        other.stdin.write("\n")
    assert other.returncode == 0


async def read_all(path: Path) -> list[StoredRecord]:
    log = await open_sqlite(path, create=False)
    try:
        return await read(log)
    finally:
        await log.close()


async def with_one_record(path: Path) -> None:
    log = await made(path)
    await log.append({T0: [RECORD]})
    await log.close()


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_it_is_not_opened_with_an_index_that_others_do_not_share(tmp_path: Path, ending: str) -> None:
    """Two processes would each put its commits where the other has its own."""
    path = tmp_path / "log.db"
    asyncio.run(with_one_record(path))
    with held_open(path) as other:
        Path(f"{path}{ending}").unlink()
        why = f"{ending}, a part of the log .* was deleted while process {other.pid} had"
        with pytest.raises(LogUnusable, match=why):
            asyncio.run(read_all(path))
        assert not Path(f"{path}{ending}").exists(), "none was made"
    assert len(asyncio.run(read_all(path))) == 1


def test_a_process_of_another_container_is_seen_too(tmp_path: Path) -> None:
    """It has no number here; the system's list of locks leaves it out."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("making a namespace is not allowed here")
    path = tmp_path / "log.db"
    asyncio.run(with_one_record(path))
    program = f"import asyncio, pathlib\nfrom state.log.sqlite import open_sqlite\nasyncio.run(open_sqlite(pathlib.Path({str(path)!r}), create=False))"
    with held_open(path):
        Path(f"{path}-shm").unlink()
        found = subprocess.run([*alone, sys.executable, "-c", program], capture_output=True, text=True)
        assert "was deleted while another process had it open" in found.stderr, found
    assert len(asyncio.run(read_all(path))) == 1


def test_a_log_behind_a_link_is_opened_by_several_and_its_parts_are_beside_the_file(tmp_path: Path) -> None:
    """SQLite follows the link: nothing is missing where it is not."""
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "log.db", tmp_path / "link.db"
    asyncio.run(with_one_record(path))
    link.symlink_to(path)
    with held_open(link) as other:
        assert len(asyncio.run(read_all(link))) == len(asyncio.run(read_all(path))) == 1
        Path(f"{path}-shm").unlink()
        with pytest.raises(
            LogUnusable, match=f"{path}-shm, a part of the log {link}, was deleted while process {other.pid} had"
        ):
            asyncio.run(read_all(link))
    assert len(asyncio.run(read_all(link))) == 1


async def test_a_link_that_leads_elsewhere_is_noticed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        await (await made(tmp_path / f"{name}.db")).close()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "one.db")
    log = await open_sqlite(link, create=False)
    link.unlink()
    link.symlink_to(tmp_path / "two.db")
    with pytest.raises(LogUnusable, match=f"the log {link} was deleted or replaced"):
        await log.append({T0: [RECORD]})
    await log.close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_goes_away_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log.db"
    log = await made(path)
    reader = log.reader()
    reader.add(T0, 0)
    waiting = asyncio.create_task(reader.poll(wait_ms=60_000))
    await asyncio.sleep(0)
    path.unlink()
    if how == "replaced":
        shutil.copy(__file__, path)
    with pytest.raises(LogUnusable, match="deleted or replaced"):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(LogUnusable, match="deleted or replaced"):
        await log.append({T0: [RECORD]})
    with pytest.raises(LogUnusable, match="deleted or replaced"):
        await log.ends([T0])
    await log.close()


async def test_a_locked_log_is_an_error_after_the_timeout_and_fine_afterwards(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", busy_timeout_ms=50)
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(LogBusy, match="another process holds the log"):
        await log.append({T0: [RECORD]})
    assert await read(log) == []  # reading goes on
    other.execute("rollback")
    assert await log.append({T0: [RECORD]}) == {T0: 1}
    other.close()
    await log.close()


async def test_a_writer_waits_its_turn_without_holding_the_loop(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", busy_timeout_ms=30_000)
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("begin immediate")
    writing = asyncio.create_task(log.append({T0: [RECORD]}))
    turns = 0
    while turns < 50:
        await asyncio.sleep(0.001)
        turns += 1
    assert not writing.done()
    other.execute("commit")
    assert await asyncio.wait_for(writing, 10) == {T0: 1}
    other.close()
    await log.close()


async def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db")
    reader = log.reader()
    await log.close()
    for call in (log.append({T0: [RECORD]}), log.ends([T0]), reader.poll()):
        with pytest.raises(LogUnusable, match="closed by this process"):
            await call


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = await made(path)
    await log.append({T0: [NewRecord(b"k", b"v" * 100_000, 0)] * 10})
    await log.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(LogUnusable, match="damaged"):
        broken = await open_sqlite(path, create=False)
        try:
            await broken.topics(["t"])
        finally:
            await broken.close()


ALTERED = {
    "the base in the batch": "update batches set data = cast(x'0000000000000063' || substr(data, 9) as blob) where base = 1",
    "the base of the row": "update batches set base = 9 where base = 2",
    "the end of the row": "update batches set next = 1 where base = 1",
    "the batch of another row": "update batches set data = (select data from batches where base = 0) where base = 2",
    "a number in place of a batch": "update batches set data = 5 where base = 1",
    "a name in place of a number": "update batches set next = 'x' where base = 1",
    "a batch that is cut off": "update batches set data = substr(data, 1, 9) where base = 1",
}


@pytest.mark.parametrize("what", ALTERED)
async def test_an_altered_row_is_damage_of_its_partition(tmp_path: Path, what: str) -> None:
    """No CRC covers where a batch lies: its records were read at other offsets, twice, or not at all, without a word."""
    path = tmp_path / "log.db"
    log = await made(path, "changelog")
    for value in (b"1", b"2", b"3"):
        await log.append({T0: [NewRecord(b"k", value, 0)]})
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(ALTERED[what]).rowcount == 1
        db.commit()
    altered = await open_sqlite(path, create=False)
    reader = altered.reader()
    reader.add(T0, 0)
    (got,) = await reader.poll()  # who reads other partitions goes on
    with pytest.raises(LogDamaged, match="does not match its checksum"):
        decode(got.data, 0)
    with pytest.raises(LogDamaged):
        await altered.compact("t")
    await altered.close()


def without_a_row(path: Path, table: str) -> None:
    """Take one entry out of the index of a table, as damage of its page may: the row stays where it is."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
        query = "select rootpage from sqlite_master where type = 'index' and tbl_name = ?"
        ((root,),) = db.execute(query, (table,)).fetchall()
        ((page,),) = db.execute("pragma page_size").fetchall()
    data = bytearray(path.read_bytes())
    at = (root - 1) * page
    kind, cells = data[at], int.from_bytes(data[at + 3 : at + 5])
    assert kind == 10 and cells > 2  # a leaf, whose entries begin behind eight bytes
    after = data[at + 8 + 2 * (cells // 2 + 1) : at + 8 + 2 * cells]
    data[at + 8 + 2 * (cells // 2) : at + 8 + 2 * (cells - 1)] = after
    data[at + 3 : at + 5] = (cells - 1).to_bytes(2)
    path.write_bytes(data)


async def test_a_row_that_an_index_has_lost_is_not_left_out(tmp_path: Path) -> None:
    """Its records were skipped: positions went on behind them, and tables lacked them."""
    path = tmp_path / "log.db"
    log = await made(path)
    for number in range(5):
        await log.append({T0: [NewRecord(b"k", b"%d" % number, 0)] * 2})
    await log.close()
    without_a_row(path, "batches")
    damaged = await open_sqlite(path, create=False)
    with pytest.raises(LogDamaged, match=r"offsets 4 to 5 are not found .* `orchestrator log check`"):
        await read(damaged)
    reader = damaged.reader()
    reader.add(T0, 6)
    assert [len(decode(got.data, 6)) for got in await reader.poll()] == [4]
    await damaged.close()
    assert any("missing from index" in line for line in problems(path))
    with closing(sqlite3.connect(path)) as db:
        db.execute("reindex")
    assert problems(path) == []
    mended = await open_sqlite(path, create=False)
    assert len(await read(mended)) == 10
    await mended.close()


@pytest.mark.parametrize("at", [3, 40, -1], ids=["place", "head", "record"])
async def test_bytes_of_a_batch_that_were_changed_are_found_by_a_look_at_the_whole(tmp_path: Path, at: int) -> None:
    """SQLite does not see them; who reads there does, and may not for years."""
    log = await made(tmp_path / "log.db")
    for _ in range(50):
        await log.append({T0: [RECORD]})
    assert problems(tmp_path / "log.db") == []
    [[data]] = log._writer.db.execute("select data from batches where base = 30")
    changed = bytearray(data)
    changed[at] ^= 1
    log._writer.db.execute("update batches set data = ? where base = 30", (bytes(changed),))
    await log.close()
    [line] = problems(tmp_path / "log.db")
    assert line.startswith("t-0: record batch at offset 30 does not match its checksum"), line
    assert not are_of_indexes([line, "row 3 missing from index x"])


async def test_batches_at_the_end_that_an_index_has_lost(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db")
    for _ in range(3):
        await log.append({T0: [RECORD]})
    log._writer.db.execute("delete from batches where base = 2")
    with pytest.raises(LogDamaged, match="offsets 2 to 2 are not found"):
        await read(log)
    await log.close()


async def test_what_compaction_removed_is_no_damage(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", "changelog")
    for _ in range(3):
        await log.append({T0: [RECORD]})
    log._writer.db.execute("delete from batches where base in (0, 1)")
    assert [record.offset for record in await read(log)] == [2]
    log._writer.db.execute("delete from batches where base = 2")
    assert await read(log) == []
    await log.close()


async def test_a_full_disk_is_named_and_nothing_is_half_written(tmp_path: Path) -> None:
    """SQLite's own limit stands in for the disk: the same error code, in the same places."""
    log = await made(tmp_path / "log.db")
    await log.append({T0: [RECORD]})
    log._writer.db.execute("pragma max_page_count=60")
    with pytest.raises(LogFull, match="no space left"):
        await log.append({T0: [NewRecord(b"k", b"v" * 100_000, 0)] * 10})
    assert len(await read(log)) == 1
    log._writer.db.execute("pragma max_page_count=1000000")
    assert await log.append({T0: [RECORD]}) == {T0: 2}
    await log.close()


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from state.errors import StateError
from state.log.protocol import NewRecord, Partition, Retention, TopicSpec
from state.log.sqlite import open_sqlite

async def main():
    log = await open_sqlite(Path(sys.argv[1]), create=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        for _ in range(100):
            await log.append({Partition("t", 0): [NewRecord(b"k", b"v" * 50_000, 0)]})
    except StateError as error:
        print(type(error).__name__, error)

asyncio.run(main())
"""


@pytest.mark.processes
async def test_a_disk_that_refuses_writes_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = await made(path)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout
    assert done.stdout.split()[0] in ("OutcomeUnknown", "LogUnusable")
    written = await read(log)
    assert all(len(one.value or b"") == 50_000 for one in written)
    assert await log.append({T0: [RECORD]}) == {T0: len(written) + 1}
    await log.close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


async def test_a_large_transaction_is_quick(tmp_path: Path) -> None:
    """Prints what it took; the bound only catches a change of order."""
    log = await made(tmp_path / "log.db")
    records = [NewRecord(b"key-%d" % number, b"v" * 100, number) for number in range(20_000)]
    before = time.perf_counter()
    await log.append({T0: records})
    appended = time.perf_counter()
    assert len(await read(log)) == 20_000
    print(f"append {appended - before:.3f} s, read {time.perf_counter() - appended:.3f} s")
    await log.close()


async def test_compaction_gives_space_back_and_merges_small_batches(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = await made(path, "changelog")
    for turn in range(300):
        await log.append({T0: [NewRecord(b"k%d" % (turn % 30), bytes(20_000), 0)]})
    assert (await log.compact("t")).removed == 270
    assert [one.offset for one in await read(log)] == list(range(270, 300))
    connection = sqlite3.connect(path)
    (rows,) = connection.execute("select count(*) from batches").fetchone()
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.close()
    assert rows <= 6
    assert pages * 4096 < 3_000_000
    await log.close()


async def test_a_compaction_that_was_overtaken_brings_nothing_back(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", "changelog")
    for value in (b"1", b"2", b"3"):
        await log.append({T0: [NewRecord(b"k", value, 0), NewRecord(b"j", value, 0)]})
    part = 1
    rows = await log.read(
        lambda db: [compaction.Row(*row) for row in db.execute("select id, base, next, time_ms, data from batches")]
    )
    stale = list(compaction.rewrites(rows, {b"k": 2, b"j": 1}, 0, 1 << 60))  # keeps k of the second batch
    assert stale
    assert (await log.compact("t")).removed == 4
    before = await read(log)
    assert log._upkeep.replace(part, stale) is None
    assert await read(log) == before
    assert [(one.key, one.value) for one in before] == [(b"k", b"3"), (b"j", b"3")]
    await log.close()


async def test_tombstones_of_a_changelog_with_a_base_stay(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", "changelog", delete_retention_ms=-60_000)  # everything is old
    kept = base.encode(base.Base("snap-1", (await log.topics(["t"]))["t"].topic_id))
    lease = await log.acquire("app", "c", "a:1", None)
    assert lease is not None
    marked = [AppMetadata("app", base.BASE, "t", kept)]
    assert await log.seed_positions(lease, {T0: 0}, {T0: [base.marker(0)]}, metadata=marked)
    await log.append({T0: [NewRecord(b"k", b"1", 0), NewRecord(b"k", None, 0)]})
    assert [(await log.compact("t")).removed, (await log.compact("t")).removed] == [1, 0]
    assert [(one.offset, one.key) for one in await read(log)] == [(0, b""), (2, b"k")]
    other = base.encode(base.Base("snap-1", "another topic of this name"))
    await log.put_metadata("app", base.BASE, "t", other, lease=lease)
    assert (await log.compact("t")).removed == 2
    await log.close()


async def test_old_tombstones_go(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db", "changelog", delete_retention_ms=-60_000)  # everything is old
    await log.append({T0: [NewRecord(b"k", b"1", 0), NewRecord(b"k", None, 0), NewRecord(b"j", b"2", 0)]})
    assert (await log.compact("t")).removed == 1
    await log.close()
    log = await open_sqlite(tmp_path / "log.db", create=False, delete_retention_ms=-60_000)
    assert (await log.compact("t")).removed == 1  # the first pass is remembered by the file
    assert [(one.offset, one.key) for one in await read(log)] == [(2, b"j")]
    assert await log.ends([T0]) == {T0: 3}
    await log.close()


async def test_a_log_of_a_version_without_times_of_commits_opens_and_gets_them(tmp_path: Path) -> None:
    """And one that still commits without them does not leave a time to a position that it does not belong to."""
    path = tmp_path / "log.db"
    await (await made(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("drop table commit_times")
    log = await open_sqlite(path, create=False)
    await log.create_topic(TopicSpec("p", 1))
    place = Partition("p", 0)
    lease = await log.acquire("app", "i1", "", None)
    assert lease is not None
    await log.open_writer("app", "w")
    await log.record_owners(lease, [OwnerRecord("0_0", 1, "m", "w", 1)])
    await log.commit("app", "w", [TaskCommit("0_0", 1, {}, {place: 5}, 1_000)])
    assert await log.committed_ms("app", [place]) == {place: 1_000}
    with sqlite3.connect(path) as connection:
        connection.execute("update positions set position = 6")
    assert await log.committed_ms("app", [place]) == {}
    await log.close()
    connection.close()


async def test_what_is_older_than_its_retention_is_expired(tmp_path: Path) -> None:
    log = await made(tmp_path / "log.db")
    await log.create_topic(TopicSpec("kept", 1, retention=Retention(ms=3_600_000)))
    kept = Partition("kept", 0)
    for value in (b"1", b"2", b"3"):
        await log.append({kept: [NewRecord(b"k", value, 0)]})
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("update batches set time_ms = time_ms - 3600001 where next <= 2")
    assert await log.expired([kept]) == {kept: 2}
    await log.close()


async def test_a_trim_is_many_small_transactions_and_gives_its_pages_back(tmp_path: Path) -> None:
    """A writer that comes in between does not wait for all of it."""
    path = tmp_path / "log.db"
    log = await made(path)
    for _ in range(100):
        await log.append({T0: [NewRecord(b"k", bytes(50_000), 0)]})
    with closing(sqlite3.connect(path)) as connection:  # the file itself may have little of it yet
        [(pages,)], [(size,)] = (
            connection.execute(f"pragma {name}").fetchall() for name in ("page_count", "page_size")
        )
    trimming = asyncio.create_task(log.trim({T0: 100}))
    between = 0
    while not trimming.done():
        await log.append({T0: [NewRecord(b"k", b"meanwhile", 0)]})
        between += 1
    assert await trimming == 100 and between >= 3
    await log.close()
    assert path.stat().st_size < pages * size / 10


async def test_a_file_that_gives_no_pages_back_is_trimmed_all_the_same(tmp_path: Path) -> None:
    """One that was copied by other means keeps its free pages for what is written next."""
    path = tmp_path / "log.db"
    log = await made(path)
    await log.append({T0: [NewRecord(b"k", bytes(50_000), 0) for _ in range(40)]})
    await log.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma auto_vacuum=none")
        connection.execute("pragma journal_mode=delete")
        connection.execute("vacuum")
        assert connection.execute("pragma auto_vacuum").fetchone() == (0,)
    log = await open_sqlite(path, create=False)
    assert await asyncio.wait_for(log.trim({T0: 40}), 30) == 40
    await log.close()


async def test_a_backup_whose_disk_is_full_names_that_disk_and_leaves_nothing(tmp_path: Path, small: Path) -> None:
    log = await made(tmp_path / "log.db")
    for number in range(80):
        await log.append({T0: [NewRecord(b"k%d" % number, os.urandom(250_000), 0)]})
    with pytest.raises(StateError, match=r"the backup .*/small/copy\.db cannot be written: no space") as caught:
        backup(tmp_path / "log.db", small / "copy.db")
    assert not isinstance(caught.value, LogFull)  # the log is not what lacks space
    assert list(small.iterdir()) == []
    await log.close()


async def test_a_folder_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogUnusable, match=f"the log {tmp_path} is a folder: name the file in it"):
        await open_sqlite(tmp_path, create=False)
    await (await made(tmp_path / "log.db")).close()
    with pytest.raises(StateError, match=f"the backup {tmp_path} cannot be written: that is a folder; name a file"):
        backup(tmp_path / "log.db", tmp_path)


async def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    """To open it waited for somebody to write, in a thread that no signal ends."""
    os.mkfifo(tmp_path / "log.db")
    for create in (True, False):
        with pytest.raises(LogUnusable, match=f"the log {tmp_path}/log.db is a pipe: name a file"):
            await asyncio.wait_for(open_sqlite(tmp_path / "log.db", create=create), 10)


async def test_a_path_with_two_slashes_names_no_host(tmp_path: Path) -> None:
    log = await made(Path(f"/{tmp_path}/log.db"))
    await log.append({T0: [RECORD]})
    await log.close()
    log = await open_sqlite(tmp_path / "log.db", create=False)
    assert len(await read(log)) == 1
    await log.close()


@pytest.mark.parametrize("pages", [3, 13])
async def test_a_first_start_on_a_full_disk_says_so(small: Path, pages: int) -> None:
    """There is room for its index, or for that neither."""
    with (small / "filler").open("wb") as filler:
        filler.write(bytes((16 << 20) - pages * 4096))
    with pytest.raises(LogFull, match="has no space left to grow: free some space on its disk"):
        await open_sqlite(small / "log.db", create=True)


async def test_a_backup_is_made_beside_what_a_killed_one_of_its_pid_left(tmp_path: Path) -> None:
    """In a container each process may have the number of the one before."""
    await (await made(tmp_path / "log.db")).close()
    (left := tmp_path / f".copy.db.{os.getpid()}.part").write_bytes(b"a part")
    backup(tmp_path / "log.db", tmp_path / "copy.db")
    assert problems(tmp_path / "copy.db") == [] and left.exists()
