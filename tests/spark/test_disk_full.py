"""A disk that is full is one line with its folder and what to do, at once, and what is committed is not called undone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from pipeline.spark.attempts import opened
from pipeline.spark.backfill import NotPublished
from pipeline.spark.kept_work import FILE
from pipeline.spark.moment import sources
from pipeline.spark.row_counts import ROWS
from pipeline.spark.runs import Spent
from pipeline.spark.session import SparkFailed
from pipeline.spark.source import Source, _kept, _send, pieces
from pipeline.spark.stage import compute
from state.errors import LogFull, NoSpaceLeft
from tests.spark import tallies
from tests.spark.test_attempts import job, some_rows
from tests.spark.test_audit import TALLIES
from tests.spark.test_backfill import ROOT, Place, write
from tests.spark.test_kept_work import refusing
from workers.prepare import prepare

BLOCK = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    found = tmp_path / "disk"
    found.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(found)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield found
    subprocess.run(["umount", "-l", str(found)], check=True)


def fill(disk: Path, left: int) -> None:
    """All but some bytes."""
    (disk / "fill").write_bytes(bytes(shutil.disk_usage(disk).free - left))


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 4])
def test_a_task_says_so_at_once(disk: Path, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would try it again three times: after a history of hours each time. Wherever it is met: outputs, entries, files of
    the snapshot, facts."""
    monkeypatch.setattr(Source, "load", lambda self: tallies.app)
    work = disk / "snapshots" / ".one.work"
    work.mkdir(parents=True)
    fill(disk, blocks * BLOCK)
    with opened(work / ".attempts") as attempts:
        facts = compute(job(work, attempts), 0, 1, some_rows(40), Spent())
        assert all(path.suffix == ROWS for path in attempts.iterdir()), "what is left is for people"
    assert facts.failure == (
        f"no space is left on the disk of {work.parent}: tables and outputs are written there; free some, or name another folder "
        "with --snapshots"
    )


def test_the_source_for_executors_is_no_answer(disk: Path) -> None:
    """`verify` with a full TMPDIR said that its answer cannot be written, and nothing of the folder."""
    fill(disk, 0)
    with pytest.raises(NoSpaceLeft) as raised:
        _kept(disk, "tests", pieces("tests"))
    assert str(raised.value) == (
        f"no space is left on the disk of {disk}: the app's source is kept there for executors; free some, or name another folder with TMPDIR"
    )


class NoRoom(Py4JJavaError):
    """As Spark raises it where its own folder is full."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return (
            "An error occurred while calling o104.addFile.\n: java.nio.file.FileSystemException: /a/shop.zip -> /b/shop.zip: No space left on "
            "device\n\tat java.base/sun.nio.fs.UnixException.translateToIOException(UnixException.java:100)"
        )


@pytest.mark.spark
def test_spark_s_own_folder_without_room_for_the_source(spark: Any) -> None:
    """It was an internal error, with a page of Java."""

    def refused(archive: str) -> None:
        raise NoRoom

    with pytest.raises(SparkFailed) as raised:
        _send(spark, refused, Path("shop.zip"))
    assert "a Spark job failed: no space is left on a disk" in str(raised.value) and "spark.local.dir" in str(
        raised.value
    )
    assert "java" not in str(raised.value).partition("; its log is")[0]


@pytest.fixture
def place(tmp_path: Path, spark: Any, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(ROOT)
    found = Place(tmp_path, spark)
    found.snapshots = disk / "snapshots"
    return found


@pytest.mark.spark
@pytest.mark.parametrize("is_log_full", [False, True])
async def test_what_the_driver_writes(place: Place, is_log_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest, when all is committed; or the facts of what is kept, where the log has no space either."""
    log = await place.log()
    await write(log, tallies.app, [(tallies.marks, f"k{n}", 1, n) for n in range(20)])

    def computed(text: str) -> None:
        if text.startswith("subtopology"):
            fill(place.snapshots.parent, 0)
        place.said.append(text)

    inputs = sources(await prepare(log, tallies.app))
    with monkeypatch.context() as patch:
        if is_log_full:
            refusing(patch, LogFull("the log has no space"))
        with pytest.raises(LogFull if is_log_full else NotPublished) as raised:
            await place.backfill(TALLIES, say=computed)
    assert bool(await log.positions("tallies", inputs)) is not is_log_full
    assert not list(place.snapshots.iterdir())
    if is_log_full:
        assert FILE in place.said[-1] and "No space left" in place.said[-1]
    else:
        assert str(raised.value) == (
            f"the backfill is in the log, whole, but not all of its snapshot is in {place.snapshots} (No space left on device): do not "
            f"run it again; free some space, then `orchestrator snapshot tallies --snapshots {place.snapshots}` makes another"
        )
    await log.close()
