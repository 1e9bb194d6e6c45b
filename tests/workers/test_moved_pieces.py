"""A version whose topics or tables are in other subtopologies than before is refused beside that version: both would process one input and
write one changelog. Law: what both versions run at once has one number in both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import App
from orchestrator.coordinator.election import LEASE_TIMEOUT_MS
from state.log.group_store import Lease, MetadataKind
from state.log.memory import MemoryLog
from state.log.protocol import GroupLog
from state.log.sqlite import open_sqlite
from workers import moved_pieces
from workers.errors import AppRefused
from workers.instance import candidate
from workers.missing_inputs import prepare_and_say
from workers.prepare import DESCRIPTION, NUMBERING, prepare


def version(**pieces: tuple[str, ...]) -> App:
    """By its processors: the topic that each reads, and its tables."""
    app = App("rolled", partitions=1)
    topics = {name: app.topic(name, key=str, value=int) for name in sorted({reads for reads, *_ in pieces.values()})}
    named = sorted({table for _, *tables in pieces.values() for table in tables})
    tables = {name: app.table(name, key=str, value=int, default=int) for name in named}
    for name, (reads, *uses) in pieces.items():
        namespace: dict[str, Any] = {}
        exec(f"def {name}(record, {', '.join(uses)}): ...", namespace)  # its parameters carry the tables' names
        app.processor(topics[reads], *(tables[use] for use in uses))(namespace[name])
    return app


def joined() -> App:
    return version(p=("A", "T1", "T2"), q=("B", "T2"))


def apart() -> App:
    return version(p=("A", "T1"), q=("B", "T2"))


def one_more() -> App:
    return version(p=("A", "T1"), q=("B", "T2"), r=("C", "T3"))


def elsewhere() -> App:
    """`q` has gone to the piece of `r`."""
    return version(p=("A", "T1"), q=("B", "T2", "T3"), r=("C", "T3", "T4", "T5"))


def three() -> App:
    return version(p=("A", "T1"), q=("B", "T2"), r=("C", "T3", "T4", "T5"))


def by_key(is_rekeyed: bool) -> App:
    app = App("rolled", partitions=1)
    orders, sums = app.topic("orders", key=str, value=int), app.table("sums", key=str, value=int)
    source = orders.rekey("by", key=str, by=lambda record: record.key) if is_rekeyed else orders

    @app.processor(source, sums)
    def add(record: Any, sums: Any) -> None: ...

    return app


@asynccontextmanager
async def running(log: GroupLog) -> AsyncIterator[None]:
    """A group of which a coordinator is there."""
    lease = await log.acquire("rolled", "i1", "here:1", await log.lease("rolled"))
    assert lease is not None

    async def beat(lease: Lease) -> None:
        while True:
            lease = await log.renew(lease)
            await asyncio.sleep(0.02)

    beating = asyncio.create_task(beat(lease))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def facts(log: GroupLog) -> list[bytes | None]:
    return [await log.metadata("rolled", kind, "app") for kind in (NUMBERING, DESCRIPTION)]


MOVES = [
    (joined(), apart(), "topic B and table T2 move from subtopology 0 to 1 in this version, and instances"),
    (apart(), joined(), "topic B and table T2 move from subtopology 1 to 0 in this version, and instances"),
    (three(), elsewhere(), "topic B and table T2 move from subtopology 1 to 2 in this version, and instances"),
    (by_key(True), by_key(False), "topic orders moves from subtopology 0 to 1 in this version, and instances"),
    (by_key(False), by_key(True), "topic orders moves from subtopology 0 to 1 in this version, and instances"),
]


@pytest.mark.parametrize(("old", "new", "line"), MOVES, ids=["split", "joined", "moved", "re-key gone", "re-key new"])
async def test_it_is_refused_while_the_version_before_runs(old: App, new: App, line: str, tmp_path: Path) -> None:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await prepare(log, old)
    before = await facts(log), await log.names()
    async with running(log):
        with pytest.raises(AppRefused, match=line) as refused:
            await prepare(log, new)
        assert refused.value.exit_code == 3 and "stop all instances of that version first" in str(refused.value)
        assert before == (await facts(log), await log.names()), "what was refused wrote nothing"
        await prepare(log, old)  # a bounce
    await log.close()


@pytest.mark.parametrize("begins", ["never ran", "stopped"])
async def test_it_is_taken_where_nothing_runs(begins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of it that come then are beside their own version, and one of the version before is refused in turn."""
    monkeypatch.setattr(moved_pieces, "STILL_MS", 200)
    log = MemoryLog()
    await prepare(log, joined())
    if begins == "stopped":
        async with running(log):
            pass
    await prepare(log, apart())
    async with running(log):
        await prepare(log, apart())
        with pytest.raises(AppRefused, match="topic B and table T2 move from subtopology 1 to 0"):
            await prepare(log, joined())
        await prepare(log, apart())
    await prepare(log, joined())


async def test_a_group_whose_coordinator_was_killed_runs_still() -> None:
    """Another instance takes its place within the time that a candidate waits."""
    log = MemoryLog()
    await prepare(log, joined())
    async with running(log):
        pass
    starting = asyncio.create_task(prepare(log, apart()))
    await asyncio.wait([starting], timeout=0.2)
    async with running(log):
        with pytest.raises(AppRefused, match="move from subtopology"):
            await starting
    assert moved_pieces.STILL_MS > LEASE_TIMEOUT_MS + 1_000 * candidate.LOOK_S


async def test_a_piece_more_or_less_is_rolled() -> None:
    """Also back, and where a version before these had what moved since then."""
    log = MemoryLog()
    await prepare(log, joined())
    await prepare(log, apart())
    async with running(log):
        for app in (one_more(), apart(), version(p=("A", "T1")), one_more(), version(q=("B", "T2")), apart()):
            await prepare(log, app)


async def test_a_third_version_is_compared_with_the_first_which_still_runs() -> None:
    """The second one lacks what the third has elsewhere."""
    log = MemoryLog()
    await prepare(log, apart())
    async with running(log):
        await prepare(log, version(p=("A", "T1")))
        with pytest.raises(AppRefused, match="topic B and table T2 move from subtopology 1 to 0"):
            await prepare(log, joined())
        await prepare(log, apart())


async def test_what_nothing_has_run_moves_nothing() -> None:
    """A record that was produced with code under way had a rolling upgrade refused."""
    log = MemoryLog()
    await prepare(log, version(p=("A", "T1")))
    async with running(log):
        await prepare(log, version(p=("A", "T1"), n=("N", "T9")), runs=False)
        await prepare(log, version(p=("A", "T1"), n=("N", "T1")))


async def test_instances_of_one_version_that_start_one_after_the_other_are_taken(tmp_path: Path) -> None:
    """The second one watched while the first came, and took its beat for one of the version before: a unit that is refused stays down."""
    first, second = (
        await open_sqlite(tmp_path / "log.db", create=True),
        await open_sqlite(tmp_path / "log.db", create=False),
    )
    await prepare(first, joined())
    async with running(first):
        pass
    starting = asyncio.create_task(prepare(second, apart()))
    await asyncio.wait([starting], timeout=0.2)
    moved_by_first = await first.metadata("rolled", DESCRIPTION, "app")
    described = json.dumps(apart().describe(), sort_keys=True).encode()
    assert await first.replace_metadata("rolled", DESCRIPTION, "app", moved_by_first, described)
    async with running(first):
        await starting
    await first.close()
    await second.close()


async def test_what_an_older_version_alone_has_does_not_count() -> None:
    """The re-key of the version before is kept for tools, at its number."""
    log = MemoryLog()
    await prepare(log, by_key(True))
    await prepare(log, by_key(False))
    described = json.loads(await log.metadata("rolled", DESCRIPTION, "app") or b"")
    assert [(sub["number"], sub.get("earlier", False)) for sub in described["subtopologies"]] == [(0, True), (1, False)]
    async with running(log):
        await prepare(log, by_key(False))
        with pytest.raises(AppRefused):
            await prepare(log, by_key(True))


async def test_what_runs_no_task_is_taken_and_leaves_what_the_running_version_goes_by() -> None:
    """A producer with the code of the one version does not take the next worker of the other one for a strange one."""
    log = MemoryLog()
    await prepare(log, joined())
    kept = await facts(log)
    async with running(log):
        prepared = await prepare_and_say(log, apart(), "sqlite:x", print, "A", runs=False)
        assert {"A", "B"} <= prepared.topics.keys()
        assert await facts(log) == kept
        await prepare(log, joined())
        with pytest.raises(AppRefused):
            await prepare(log, apart())


@pytest.mark.parametrize(
    ("now", "next_"), [(joined(), apart()), (apart(), joined())], ids=["less in a piece", "a piece less"]
)
async def test_a_producer_of_an_older_version_hides_nothing_of_the_running_one(now: App, next_: App) -> None:
    log, older = MemoryLog(), version(p=("A", "T1"))
    await prepare(log, older)
    await prepare(log, now)
    async with running(log):
        await prepare(log, older, runs=False)
        with pytest.raises(AppRefused, match="topic B and table T2 move from subtopology"):
            await prepare(log, next_)


class Outrun(MemoryLog):
    """Another version prepares between the look of this one at the description and its own."""

    other: App | None = None

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        if kind == DESCRIPTION and self.other is not None:
            other, self.other = self.other, None
            await prepare(self, other)
        return await super().replace_metadata(application, kind, key, seen, value)


async def test_of_two_versions_that_start_at_one_moment_one_is_refused() -> None:
    log = Outrun()
    log.other = joined()
    async with running(log):
        with pytest.raises(AppRefused, match="move from subtopology"):
            await prepare(log, apart())
    described = json.loads(await log.metadata("rolled", DESCRIPTION, "app") or b"")
    assert [sub["sources"] for sub in described["subtopologies"]] == [["A", "B"]]
