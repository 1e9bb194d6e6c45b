"""A task that is tried twice counts once: two attempts of it at once, and one whose process is killed while it writes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.spark.attempts import Draft, NotShared, opened
from pipeline.spark.backfill import backfill
from pipeline.spark.row_counts import ROWS
from pipeline.spark.rows import Outputs, Rows, read_pairs
from pipeline.spark.runs import RUN, Spent
from pipeline.spark.source import Source
from pipeline.spark.stage import FACTS, SCOPE, StageJob, compute
from state import manifest
from state.log.sqlite import open_sqlite
from tests.spark import tallies
from workers.commands.consume import read_all

ROOT = Path(__file__).resolve().parent.parent.parent
DAEMON = b"pipeline.spark.daemon"
MARKS, KEYS, DEADLINE_S = 60_000, 30_000, 60.0


def job(work: Path, attempts: Path) -> StageJob:
    app = tallies.app
    counts = dict.fromkeys(("marks", "seen"), 2)
    changelog = app.tables["sums"].changelog
    return StageJob(
        source=Source("tests.spark.tallies:app", ""),
        numbering=app.topology({}).numbering(),
        counts=counts,
        subtopology=0,
        work=str(work),
        attempts=str(attempts),
        snapshot=True,
        base=False,
        log_id="log",
        topic_ids={changelog: "id"},
        time_ms=1,
        memory_bytes=1 << 20,
        sources=["marks"],
    )


def some_rows(
    count: int, wait: threading.Event | None = None, reached: threading.Event | None = None
) -> Iterator[Rows]:
    for number in range(count):
        if number == count // 2 and wait is not None and reached is not None:
            reached.set()
            assert wait.wait(DEADLINE_S)
        key = tallies.marks.key_codec.encode(f"k{number}")
        cells = ([number], [number], [number], [key], [tallies.marks.value_codec.encode(number + 1)], [None])
        batch = pa.RecordBatch.from_arrays(
            [pa.array(one, field.type) for one, field in zip(cells, RUN, strict=True)], schema=RUN
        )
        yield Rows(["marks"], batch)


def test_the_first_of_two_attempts_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's speculation has them: at once, one faster than the other."""
    monkeypatch.setattr(Source, "load", lambda self: tallies.app)
    go_on, reached = threading.Event(), threading.Event()
    answers: dict[int, Any] = {}
    with opened(tmp_path / ".attempts") as attempts:
        given = job(tmp_path, attempts)

        def slow() -> None:
            answers[1] = compute(given, 0, 1, some_rows(40, go_on, reached), Spent())

        first = threading.Thread(target=slow)
        first.start()
        assert reached.wait(DEADLINE_S)
        answers[2] = compute(given, 0, 2, some_rows(40), Spent())
        written = inodes(tmp_path / "0_0")
        go_on.set()
        first.join(DEADLINE_S)
        answers[3] = compute(given, 0, 3, some_rows(40), Spent())  # a retry after the end: it finds what is there
        assert all(path.suffix == ROWS for path in attempts.iterdir()), "what is left is for people"
    one, two, three = (answers[attempt] for attempt in (1, 2, 3))
    assert one == two == three and one.records_in == 40, "all of them say what the one has written that counts"
    assert inodes(tmp_path / "0_0") == written and [path.name for path in tmp_path.iterdir()] == ["0_0"]
    assert manifest.sum_of_scope(tmp_path / "0_0" / SCOPE) == one.scope_sum
    assert len(list(read_pairs(tmp_path / "0_0/state/sums.parquet"))) == 40
    outputs = Outputs([tmp_path / "0_0/outputs/seen.parquet"])
    assert sum(len(list(outputs.of(number))) for number in outputs.partitions()) == 40
    outputs.close()


def inodes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("again", [False, True])
def test_an_attempt_that_comes_too_late_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Spark has the answer of another, and its stage is over, before the slow one is killed. With `again` the subtopology is
    computed a second time, as one that writes its own inputs is: what the first time left goes before that."""
    monkeypatch.setattr(Source, "load", lambda self: tallies.app)
    go_on, reached = threading.Event(), threading.Event()
    raised: list[BaseException] = []
    with opened(tmp_path / ".attempts-1") as attempts:
        given = job(tmp_path, attempts)

        def slow() -> None:
            try:
                compute(given, 0, 1, some_rows(40, go_on, reached), Spent())
            except OSError as error:
                raised.append(error)

        first = threading.Thread(target=slow)
        first.start()
        assert reached.wait(DEADLINE_S)
        compute(given, 0, 2, some_rows(40), Spent())
    if again:
        shutil.rmtree(tmp_path / "0_0")
    before = inodes(tmp_path)
    go_on.set()
    first.join(DEADLINE_S)
    assert [type(error) for error in raised] == [FileNotFoundError]
    assert inodes(tmp_path) == before and not list(tmp_path.glob(".*"))
    if again:
        with opened(tmp_path / ".attempts-2") as attempts:
            assert compute(job(tmp_path, attempts), 0, 3, some_rows(50), Spent()).records_in == 50


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "load", lambda self: tallies.app)

    def failing() -> Iterator[Rows]:
        yield from some_rows(10)
        raise OSError("the shuffle is gone")

    with opened(tmp_path / ".attempts") as attempts:
        with pytest.raises(OSError, match="shuffle"):
            compute(job(tmp_path, attempts), 0, 1, failing(), Spent())
        assert all(path.suffix == ROWS for path in attempts.iterdir()) and list(tmp_path.iterdir()) == [attempts]
        assert compute(job(tmp_path, attempts), 0, 2, some_rows(10), Spent()).records_in == 10


# ---- a kill


class Killer(threading.Thread):
    """Kills Spark's Python workers once, while one of them writes the table of a task that has no name yet."""

    def __init__(self, snapshots: Path) -> None:
        super().__init__(daemon=True)
        self._snapshots = snapshots
        self.killed: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set() and not self.killed:
            drafts = list(self._snapshots.glob(".*.work/.attempts-*/0_*/state/*.parquet"))
            if any(not (path.parent.parent / FACTS).exists() for path in drafts):
                for pid in workers_of_spark():
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)
            self.over.wait(0.001)


def workers_of_spark() -> list[int]:
    """The Python workers of this process's Spark: children of the daemon below its Java process."""
    found: list[int] = []

    def below(pid: int, is_daemon: bool) -> None:
        command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ")
        if is_daemon and DAEMON in command:
            found.append(pid)
        for child in _children(pid):
            below(child, DAEMON in command)

    for java in _children(os.getpid()):
        for child in _children(java):
            below(child, False)
    return found


def _children(pid: int) -> list[int]:
    """Of all threads."""
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(path).split()]


def _read(path: str | Path) -> bytes:
    """Nothing of a thread or process that has ended since it was listed."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


@pytest.mark.spark
async def test_a_worker_killed_while_it_writes(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    keys = [f"k{number % KEYS}" for number in range(MARKS)]
    columns = [pa.array(keys), pa.array([1] * MARKS), pa.array(range(MARKS))]
    pq.write_table(pa.table(columns, ["key", "value", "timestamp_ms"]), tmp_path / "marks.parquet")
    killer = Killer(tmp_path / "snapshots")
    killer.start()
    try:
        facts = await backfill(
            "tests.spark.tallies:app",
            f"sqlite:{tmp_path / 'log.db'}",
            tmp_path / "snapshots",
            history={"marks": [str(tmp_path / "marks.parquet")]},
            say=lambda text: None,
            session=spark,
        )
    finally:
        killer.over.set()
        await asyncio.to_thread(killer.join)
    assert killer.killed, "no worker was seen while it wrote"
    assert facts["records_in"] == MARKS and facts["tables"] == {"sums": KEYS} and facts["outputs"] == {"seen": MARKS}
    log = await open_sqlite(tmp_path / "log.db", create=False)
    try:
        sums = [(record.key, record.value) for _, record in await read_all(log, tallies.sums.changelog)]
        assert len(sums) == KEYS
        assert dict(sums) == {f"k{number}".encode(): (2).to_bytes(8, "big") for number in range(KEYS)}
        seen = Counter(record.key for _, record in await read_all(log, "seen"))
        assert set(seen.values()) == {2} and len(seen) == KEYS
    finally:
        await log.close()
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [facts["snapshot"]]


def test_a_folder_that_an_executor_does_not_have_is_named(tmp_path: Path) -> None:
    """A stage that is over has its work folder still: that an attempt came too late is not this error."""
    with pytest.raises(
        NotShared, match=f"write what they compute to {tmp_path / 'work'}, which is not there on .*TMPDIR"
    ):
        Draft(tmp_path / "work" / "attempts", "0_0", 0)
    (tmp_path / "work").mkdir()
    with pytest.raises(FileNotFoundError):
        Draft(tmp_path / "work" / "attempts", "0_0", 0)
