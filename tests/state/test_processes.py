"""Real processes on one log and one store: at once, killed in the middle, stopped in the middle."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from state.log.batches import decode
from state.log.group_store import OwnerRecord
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.log.sqlite import SqliteLog, open_sqlite
from state.store.rocksdb import RocksDbStore

pytestmark = pytest.mark.processes

P0, P1, P2 = (Partition("t", number) for number in range(3))
DEADLINE_S = 60.0

COMMITTER = """
import asyncio, sys
from pathlib import Path
from state.log.protocol import NewRecord, Partition, TaskCommit
from state.log.sqlite import open_sqlite

async def main(path, name, scope, count):
    log = await open_sqlite(Path(path), create=False, busy_timeout_ms=60_000)
    me = int(scope.split("_")[1])
    source, shared, own = Partition("sources", me), Partition("t", 0), Partition("own", me)
    done = (await log.positions("app", [source])).get(source, 0)
    await log.open_writer("app", name)
    print("ready", flush=True)
    sys.stdin.readline()
    while done < count:
        record = NewRecord(b"%d" % me, b"%d" % done, done)
        done += 1
        await log.commit("app", name, [TaskCommit(scope, 1, {shared: [record], own: [record, record]}, {source: done})])
    await log.close()

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""

STORER = """
import sys
from pathlib import Path
from state.store.rocksdb import RocksDbStore

store = RocksDbStore(Path(sys.argv[1]), stamp={"log_id": "l", "topic_id": "t"})
print("ready", flush=True)
offset = store.offset
while True:
    offset += 1
    value = b"%d " % offset + bytes(3_000)
    store.write({b"k%d" % (offset * step % 997): value for step in (1, 2, 3)} | {b"gone%d" % offset: b"x", b"gone%d" % (offset - 1): None}, offset)
    if offset % 50 == 0:
        print(offset, flush=True)
"""

MAKER = """
import asyncio, sys
from pathlib import Path
from state.log.protocol import TopicSpec
from state.log.sqlite import open_sqlite

async def main(path):
    print("ready", flush=True)
    sys.stdin.readline()
    log = await open_sqlite(Path(path), create=True)
    topic = await log.create_topic(TopicSpec("t", 2))
    print(log.log_id, topic.topic_id, flush=True)
    await log.close()

asyncio.run(main(sys.argv[1]))
"""

BUILDER = """
import asyncio, os, sys
from pathlib import Path
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite

class Slow(list):
    def __getitem__(self, which):  # what builds the batch reads the records here
        print("building", flush=True)
        sys.stdin.readline()
        return super().__getitem__(which)

async def main(path):
    log = await open_sqlite(Path(path), create=False)
    print(await log.append({Partition("t", 0): Slow([NewRecord(b"slow", b"1", 0)])}), flush=True)
    await log.close()

asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def processes(script: str, *arguments: list[object]) -> Iterator[list[subprocess.Popen[str]]]:
    """One child for each list of arguments; none outlives its test."""
    children: list[subprocess.Popen[str]] = []
    try:
        for listed in arguments:
            command = [sys.executable, "-c", script, *map(str, listed)]
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()


@contextmanager
def process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with processes(script, list(arguments)) as (child,):
        yield child


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@asynccontextmanager
async def log_for(path: Path, scopes: list[str]) -> AsyncIterator[SqliteLog]:
    log = await open_sqlite(path, create=True)
    for topic, partitions in (("t", 3), ("own", 8), ("sources", 8)):
        await log.create_topic(TopicSpec(topic, partitions))
    lease = await log.acquire("app", "coordinator", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [OwnerRecord(scope, 1, "m", f"w-{scope}", 1) for scope in scopes])
    yield log
    await log.close()


async def read(log: SqliteLog, partition: Partition) -> list[tuple[int, int, int]]:
    """(offset, key, value) of every record."""
    reader = log.reader()
    reader.add(partition, 0)
    found: list[tuple[int, int, int]] = []
    while got := await reader.poll():
        for one in got:
            found += [(r.offset, int(r.key or b""), int(r.value or b"")) for r in decode(one.data, one.position)]
    return found


async def test_many_processes_commit_at_once_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    scopes = [f"0_{number}" for number in range(4)]
    count = 200
    async with log_for(tmp_path / "log.db", scopes) as log:
        reader = log.reader()
        reader.add(P0, 0)
        live: list[int] = []
        each: list[list[object]] = [[log.path, f"w-{scope}", scope, count] for scope in scopes]
        with processes(COMMITTER, *each) as children:
            assert [line(child) for child in children] == ["ready"] * 4
            for child in children:
                go(child)
            deadline = time.monotonic() + DEADLINE_S
            while len(live) < 4 * count and time.monotonic() < deadline:  # a reader of a fifth process sees all, once
                for one in await reader.poll(wait_ms=1_000):
                    live += [record.offset for record in decode(one.data, one.position)]
            assert [child.wait(DEADLINE_S) for child in children] == [0] * 4
        assert live == list(range(4 * count))
        shared = await read(log, P0)
        for me in range(4):
            assert [value for _, key, value in shared if key == me] == list(range(count))
            own = await read(log, Partition("own", me))
            assert [value for _, _, value in own] == [value for number in range(count) for value in (number, number)]
            source = Partition("sources", me)
            assert await log.positions("app", [source]) == {source: count}


async def test_a_killed_committer_leaves_whole_commits_only(tmp_path: Path) -> None:
    dice = random.Random(4711)
    source, own = Partition("sources", 0), Partition("own", 0)
    async with log_for(tmp_path / "log.db", ["0_0"]) as log:
        before = 0
        for _ in range(8):
            with process(COMMITTER, log.path, "w-0_0", "0_0", 10**9) as child:
                assert line(child) == "ready"
                go(child)
                deadline = time.monotonic() + DEADLINE_S
                goal = before + dice.randint(1, 60)
                while (await log.positions("app", [source])).get(source, 0) < goal:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0)
                child.send_signal(signal.SIGKILL)
                child.wait(DEADLINE_S)
            done = (await log.positions("app", [source]))[source]
            assert done >= goal
            assert [value for _, _, value in await read(log, P0)] == list(range(done))
            assert [value for _, _, value in (await read(log, own))[::2]] == list(range(done))
            assert len(await read(log, own)) == 2 * done
            before = done


def test_a_killed_store_falls_back_to_a_point_its_offset_names(tmp_path: Path) -> None:
    dice = random.Random(815)
    path = tmp_path / "store"
    offsets: list[int] = []
    for _ in range(6):
        with process(STORER, path) as child:
            assert line(child) == "ready"
            goal = offsets[-1] if offsets else 0
            goal += dice.randint(1_000, 6_000)
            while int(line(child)) < goal:
                pass
            child.send_signal(signal.SIGKILL)
            child.wait(DEADLINE_S)
        store = RocksDbStore(path, stamp={"log_id": "l", "topic_id": "t"})
        offset = store.offset
        found = dict(store.range(None, None))
        assert store.stamp()["log_id"] == "l"
        store.close()
        wanted = {b"gone%d" % offset: b"x"} if offset else {}
        for at in range(max(1, offset - 3_000), offset + 1):  # every key is written again within 997 writes
            for step in (1, 2, 3):
                wanted[b"k%d" % (at * step % 997)] = b"%d " % at + bytes(3_000)
        assert found == wanted
        offsets.append(offset)
    assert offsets == sorted(offsets)
    assert offsets[-1] > 2_000


async def test_a_process_stopped_while_it_builds_batches_stops_nobody(tmp_path: Path) -> None:
    async with log_for(tmp_path / "log.db", []) as log:
        with process(BUILDER, log.path) as child:
            assert line(child) == "building"
            child.send_signal(signal.SIGSTOP)
            for number in range(20):
                assert await log.append({P0: [NewRecord(b"0", b"1", 0)]}) == {P0: number + 1}
            child.send_signal(signal.SIGCONT)
            go(child)
            assert "21" in line(child)
            assert child.wait(DEADLINE_S) == 0


async def test_many_processes_may_make_the_same_log_at_once(tmp_path: Path) -> None:
    each: list[list[object]] = [[tmp_path / "new" / "log.db"]] * 4
    with processes(MAKER, *each) as children:
        assert [line(child) for child in children] == ["ready"] * 4
        for child in children:
            go(child)
        answers = {line(child) for child in children}
        assert [child.wait(DEADLINE_S) for child in children] == [0] * 4
    assert len(answers) == 1
    assert answers != {""}


GROWER = """
import asyncio, sys
from pathlib import Path
from state.log.sqlite import open_sqlite

async def main(path):
    log = await open_sqlite(Path(path), create=False)
    print((await log.grow_topic("t", 5)).partitions, flush=True)
    await log.close()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_topic_that_another_process_grew_has_its_partitions_here(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with log_for(path, []) as log:
        new = Partition("t", 4)
        await log.append({P0: [NewRecord(b"k", b"v", 0)]})
        assert (await log.topics(["t"]))["t"].partitions == 3
        with process(GROWER, path) as child:
            assert await asyncio.to_thread(line, child) == "5"
        assert (await log.topics(["t"]))["t"].partitions == 5
        assert await log.append({new: [NewRecord(b"k", b"v", 0)]}) == {new: 1}
