"""A changelog whose beginning others deleted: no table comes up with a part of what it had, and none that is whole is wiped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.model import TaskId
from state.directory import StateDirectory
from state.errors import ChangelogCut
from state.log import cut_changelogs
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord
from state.store.protocol import Store
from tests.workers.test_restores_at_once import app_of, write_snapshot
from workers.log.copying import records_of
from workers.log.written_back import take_as_it_is
from workers.prepare import DESCRIPTION, Prepared, prepare
from workers.tasks.stores import Opened, StoreOpener
from workers.topic_identities import accept, keep

TASK, ENTRIES = TaskId(0, 0), 5
KEYS = {b"%d" % n: b"1" for n in range(ENTRIES)}


class Place:
    """An app of one task, its log, and a folder with its state."""

    def __init__(self, root: Path, log: MemoryLog, prepared: Prepared) -> None:
        self.root, self.log, self.prepared = root, log, prepared
        self.changelog = prepared.changelog(TASK, "last")
        self.directory = StateDirectory(root, prepared.app.id, "i1")

    async def cut(self, start: int) -> None:
        assert await self.log.trim({self.changelog: start}) == start

    async def opened(self, snapshots: str = "") -> Opened:
        opener = StoreOpener(self.log, self.prepared, self.directory, snapshots)
        found = (await opener.open(TASK))["last"]
        found.store.close()
        return found

    async def change(self, do: Callable[[Store], None]) -> None:
        """Of the store, outside of the log."""
        found = (await StoreOpener(self.log, self.prepared, self.directory, "").open(TASK))["last"]
        do(found.store)
        found.store.close()

    def on_disk(self) -> int | None:
        peek = self.directory.tables(str(TASK))["last"].peek if str(TASK) in self.directory.tasks() else None
        return None if peek is None else peek.offset

    async def take(self, state: Path | None = None, *, starts: bool = True) -> int:
        """As `topics accept` does where state lies in `state`, and the next start; how many entries were written back."""
        application, topic = self.prepared.app.id, self.prepared.topics[self.changelog.topic]
        described = json.loads(await self.log.metadata(application, DESCRIPTION, "app") or b"")
        lease = await self.log.acquire(application, "a test", "", await self.log.lease(application))
        assert lease is not None
        count = await take_as_it_is(self.log, lease, described, topic, (state or self.root) / application)
        await accept(self.log, application, self.changelog.topic)
        if starts:
            await keep(self.log, self.prepared)
        return count

    async def fill(self, root: Path, changes: dict[bytes, bytes | None], offset: int) -> StateDirectory:
        """State of the task elsewhere, which has its changelog up to this offset."""
        directory = StateDirectory(root, self.prepared.app.id, "i1")
        with directory.lock(str(TASK)):
            found = (await StoreOpener(self.log, self.prepared, directory, "").open(TASK))["last"]
            found.store.write(changes, offset)
            found.store.close()
        return directory

    async def opened_in(self, directory: StateDirectory) -> Opened:
        found = (await StoreOpener(self.log, self.prepared, directory, "").open(TASK))["last"]
        found.store.close()
        return found

    async def restored(self) -> dict[bytes, bytes | None]:
        """What a store has that is restored from the changelog."""
        kept: dict[bytes, bytes | None] = {}
        async for record in records_of(self.log, self.changelog):
            kept[record.key or b""] = record.value
        return {key: value for key, value in kept.items() if value is not None}


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    log = MemoryLog(markers=False)
    prepared = await prepare(log, app_of(1))
    await keep(log, prepared)
    found = Place(tmp_path, log, prepared)
    for key, value in KEYS.items():
        await log.append({found.changelog: [NewRecord(key, value, 1)]})
    return found


async def test_without_a_store_the_task_is_not_opened(place: Place) -> None:
    await place.cut(3)
    with pytest.raises(ChangelogCut, match=r"no store lies here: .*begins at 3, .* topics accept restored") as caught:
        await place.opened()
    assert caught.value.exit_code == 3
    assert place.on_disk() is None, "nothing is left of the try"


@pytest.mark.parametrize("start", [4, 5])
async def test_a_store_that_stands_before_the_beginning_stays_as_it_is(place: Place, start: int) -> None:
    """It was wiped, and the table began with what the changelog had left: with nothing where it was emptied."""
    await place.change(lambda store: store.write(dict(list(KEYS.items())[:3]), 3))
    await place.cut(start)
    for _ in range(2):
        with pytest.raises(ChangelogCut, match=f"it stands at 3, and its changelog begins at {start}"):
            await place.opened()
        assert place.on_disk() == 3


async def test_a_store_that_has_all_of_it_goes_on(place: Place) -> None:
    await place.change(lambda store: store.write(KEYS, 5))
    await place.cut(4)
    found = await place.opened()
    assert (found.source, found.position) == ("disk", 5)


async def test_what_is_taken_as_it_is_goes_on_from_there_with_what_a_store_elsewhere_has(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing was written back, nothing has more than that store."""
    elsewhere = await place.fill(tmp_path / "elsewhere", dict(list(KEYS.items())[:3]), 3)
    await place.cut(4)
    assert await place.take() == 0
    found = await place.opened_in(elsewhere)
    assert (found.source, found.position) == ("disk", 4)
    assert f"{place.changelog} begins at 4; what was removed between 3 and there is missing" in caplog.text


@pytest.mark.parametrize("start", [0, 3])
async def test_an_empty_store_begins_where_its_changelog_does(
    place: Place, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    await place.cut(start)
    await place.take()
    found = await place.opened()
    assert (found.source, found.position) == ("empty", start)
    assert (f"{place.changelog} begins at {start}" in caplog.text) == (start > 0)


async def test_what_a_store_has_is_written_back_and_whoever_comes_then_has_it(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy was restored from what was left, and took the task from the owner that had everything."""
    await place.change(lambda store: store.write({**KEYS, b"4": b"old"}, 5))
    behind = await place.fill(tmp_path / "behind", {b"gone": b"1"}, 2)  # deleted in what nobody has any more
    await place.cut(4)
    assert await place.take() == 4
    assert await place.restored() == KEYS, "what is left is newer"
    assert await place.take() == 0
    await place.log.append({place.changelog: [NewRecord(b"new", b"1", 1)]})
    assert (await place.opened()).source == "disk"
    for directory in (behind, StateDirectory(tmp_path, place.prepared.app.id, "i3")):
        caplog.clear()
        found = await place.opened_in(directory)
        assert (found.source, found.position) == ("empty", 4) and "is missing" not in caplog.text
    await place.log.trim({place.changelog: 6})
    with pytest.raises(ChangelogCut, match="begins at 5"):  # a batch goes whole or not at all
        await place.opened_in(behind)


@pytest.mark.parametrize("order", [("older", "newer"), ("newer", "older"), ("older", "none", "newer", "older")])
async def test_of_stores_on_several_machines_the_one_with_most_counts(
    place: Place, tmp_path: Path, order: tuple[str, ...]
) -> None:
    await place.fill(tmp_path / "older", {b"0": b"old", b"deleted since": b"1"}, 2)
    await place.fill(tmp_path / "newer", KEYS, 4)
    await place.cut(4)
    for machine in order:
        await place.take(tmp_path / machine, starts=False)
    assert await place.restored() == KEYS
    await keep(place.log, place.prepared)
    await place.log.append({place.changelog: [NewRecord(b"0", b"since", 1)]})
    before = await place.log.ends([place.changelog])
    await place.fill(tmp_path / "late", KEYS, 6)
    for _ in range(3):
        assert await place.take(tmp_path / "late", starts=False) == 0, "the app has gone on since"
    assert await place.log.ends([place.changelog]) == before


async def test_one_that_is_cut_off_half_way_hides_no_store_of_another_machine(place: Place, tmp_path: Path) -> None:
    """It was cut off once what it wrote was written: on the next machine that was taken for the work of a start since."""
    await place.fill(tmp_path / "few", {b"0": b"1", b"1": b"1", b"2": b"1"}, 3)
    await place.fill(tmp_path / "all", KEYS, 5)
    await place.cut(5)
    application, topic = place.prepared.app.id, place.prepared.topics[place.changelog.topic]
    described = json.loads(await place.log.metadata(application, DESCRIPTION, "app") or b"")
    lease = await place.log.acquire(application, "a test", "", await place.log.lease(application))
    assert lease is not None
    assert await take_as_it_is(place.log, lease, described, topic, tmp_path / "few" / application) == 3
    assert await place.take(tmp_path / "all", starts=False) > 0
    assert await place.restored() == KEYS


async def test_nothing_is_written_back_to_a_changelog_that_is_whole(place: Place) -> None:
    await place.change(lambda store: store.write(KEYS, 5))
    assert await place.take() == 0 and await place.restored() == KEYS


async def test_what_is_removed_behind_that_is_refused_again(place: Place) -> None:
    await place.cut(2)
    await place.take()
    await place.log.trim({place.changelog: 4})
    with pytest.raises(ChangelogCut, match="begins at 4"):
        await place.opened()
    topic = place.prepared.topics[place.changelog.topic]
    with pytest.raises(ChangelogCut, match=r"a snapshot: changelog restored-last-changelog-0 begins at 4"):
        await cut_changelogs.refuse(place.log, place.prepared.app.id, [topic], "a snapshot")


async def test_a_snapshot_fills_what_the_changelog_has_lost(place: Place) -> None:
    await place.change(lambda store: store.write({b"0": b"1"}, 1))
    write_snapshot(place.root / "snapshots", place.log, place.prepared)  # up to offset 1
    await place.cut(1)
    found = await place.opened(str(place.root / "snapshots"))
    assert (found.source, found.position) == ("disk", 1)
    await place.log.trim({place.changelog: 2})
    with pytest.raises(ChangelogCut, match="it stands at 1, and its changelog begins at 2"):
        await place.opened(str(place.root / "snapshots"))
    assert place.on_disk() == 1
    place.directory.wipe(str(TASK))
    with pytest.raises(ChangelogCut, match="no store lies here"):
        await place.opened(str(place.root / "snapshots"))


async def test_a_store_of_no_use_gives_way_to_a_snapshot_and_to_nothing_else(place: Place) -> None:
    write_snapshot(place.root / "snapshots", place.log, place.prepared)
    await place.change(lambda store: store.write({b"0": b"1"}, 9))  # ahead of its changelog
    await place.cut(1)
    with pytest.raises(ChangelogCut, match="the store cannot be used"):
        await place.opened()
    assert place.on_disk() == 9
    found = await place.opened(str(place.root / "snapshots"))
    assert (found.source, found.position) == ("snapshot", 1)
