"""Hints that a file was written: from any process, also for what was written before anybody listened; none is needed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from state.log.file_watch import open_watch
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import open_sqlite
from state.log.sqlite_changes import Changes

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel gives hints on Linux alone")


@linux
async def test_a_write_of_another_process_gives_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("")
    hinted = asyncio.Event()
    watch = open_watch(path, hinted.set)
    assert watch is not None
    writing = [sys.executable, "-c", f"open({str(path)!r}, 'a').write('x')"]
    await asyncio.to_thread(subprocess.run, writing, check=True)
    assert not hinted.is_set()
    for _ in range(2):
        watch.arm()
        async with asyncio.timeout(10):
            await hinted.wait()
        watch.disarm()
        hinted.clear()
        with path.open("a") as file:
            file.write("y")
    watch.close()
    watch.arm()
    assert open_watch(tmp_path / "none", hinted.set) is None


@linux
async def test_a_waiting_reader_looks_at_once_and_rests_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, other = [await open_sqlite(tmp_path / "log.db", create=True) for _ in range(2)]
    await reading.create_topic(TopicSpec("t", 1))
    reader = reading.reader()
    reader.add(Partition("t", 0), 0)
    assert await reader.poll() == []
    looks: list[int] = []
    version = Changes.version
    monkeypatch.setattr(Changes, "version", lambda self: looks.append(1) or version(self))  # type: ignore[func-returns-value]
    assert await reader.poll(wait_ms=1_000) == []
    assert len(looks) < 20, "of 500 that looking every 2 ms would take"
    waiting = asyncio.create_task(reader.poll(wait_ms=60_000))
    await asyncio.sleep(0)
    await other.append({Partition("t", 0): [NewRecord(b"k", b"v", 1)]})
    async with asyncio.timeout(10):
        assert [part.next_position for part in await waiting] == [1]
    for one in (reading, other):
        await one.close()


async def test_a_reader_that_gets_a_partition_while_it_is_about_to_look_looks_for_it(tmp_path: Path) -> None:
    """A hint has the waiting reader look; in the same turn of the loop, before it does, it gets another partition."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await log.create_topic(TopicSpec("t", 2))
    await log.append({Partition("t", 1): [NewRecord(b"k", b"v", 1)]})
    reader = log.reader()
    reader.add(Partition("t", 0), 0)
    assert await reader.poll() == []
    waiting = asyncio.create_task(reader.poll(wait_ms=60_000))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        reader._changes._hint()  # type: ignore[attr-defined]
        reader.add(Partition("t", 1), 0)
        assert [part.partition for part in await waiting] == [Partition("t", 1)]
    await log.close()
