"""`of=stores` reads a task from its owner, or from a copy that has all: what is being restored lacks keys and is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.coordinator import messages
from orchestrator.model import TaskId
from pipeline.spark import live_stores, state_source
from pipeline.spark.live_stores import Copy, made_whole, whole_of
from state.directory import COPIES
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicSpec
from state.store.rocksdb import RocksDbStore
from tests.workers.test_direct_queries import Answering, client_of

TASK, PLACE = TaskId(0, 0), Partition("changes", 0)
END = 5


class Copying(Answering):
    """An instance whose worker copies its one store: as a role of `roles`, one after the other, and up to `offset`."""

    def __init__(self, folder: Path, log_id: str, offset: int, roles: list[str]) -> None:
        super().__init__("S1", None)
        self.folder, self.log_id, self.offset, self.roles = folder, log_id, offset, roles

    async def _answer(self) -> None:
        while True:
            wanted = await self.link.receive_down()
            assert isinstance(wanted, messages.CopyStores)
            role = self.roles.pop(0) if len(self.roles) > 1 else self.roles[0]
            path = self.folder / COPIES / wanted.request / "0_0" / "balances"
            store = RocksDbStore(path, stamp={"log_id": self.log_id})
            store.write({b"ann": b"1"}, self.offset)
            store.close()
            self.link.send(messages.Copied(wanted.id, [("0_0", "balances", str(path), role)], []))


async def whole_copies(folder: Path, offset: int, roles: list[str]) -> tuple[dict[str, Copy], list[str]]:
    log = MemoryLog(markers=False)
    await log.create_topic(TopicSpec(PLACE.topic, 1, "changelog"))
    await log.append({PLACE: [NewRecord(b"ann", b"1", 0)] * END})
    instance = Copying(folder, log.log_id, offset, roles)
    async with client_of(log, instance, [TASK]) as client:
        return await made_whole(log, client, "balances", {"0_0": PLACE})


async def test_an_owner_that_restores_is_waited_for(tmp_path: Path) -> None:
    """Its half of the keys was taken for the table."""
    found, _ = await whole_copies(tmp_path, 3, ["restoring", "standby", "active"])
    assert found["0_0"].role == "active" and Path(found["0_0"].path).exists()
    assert len(list((tmp_path / COPIES).iterdir())) == 1, "what was copied too early is gone"


async def test_what_is_never_whole_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_stores, "OWNERS_S", -1.0)
    found, problems = await whole_copies(tmp_path, 3, ["standby"])
    assert not found and problems == ["0_0 on S1 (standby) is being restored"]


async def test_a_copy_that_is_level_stands_in_for_its_owner(tmp_path: Path) -> None:
    found, problems = await whole_copies(tmp_path, END, ["standby"])
    assert found["0_0"].role == "standby" and not problems


async def filled(*, markers: bool) -> tuple[MemoryLog, int]:
    log = MemoryLog(markers=markers)
    await log.create_topic(TopicSpec(PLACE.topic, 1, "changelog"))
    await log.append({PLACE: [NewRecord(b"ann", b"1", 0)] * END})
    return log, (await log.ends([PLACE]))[PLACE]


async def test_of_two_that_are_whole_the_furthest() -> None:
    """A former owner does not know yet that another one has the task."""
    log, end = await filled(markers=False)
    old, new, behind = (Copy(name, role, "0_0", "t", name, at) for name, role, at in (
        ("a", "active", 3), ("b", "active", 4), ("c", "restoring", 2)))  # fmt: skip
    assert await whole_of(log, [old, new, behind], {"0_0": PLACE}, {PLACE: end}) == {"0_0": new}
    assert not await whole_of(log, [behind], {"0_0": PLACE}, {PLACE: end})


async def test_a_marker_is_nothing_that_a_copy_lacks() -> None:
    """On Kafka one lies behind each commit, and no store counts it: that of a halted task was "being restored" for ever."""
    log, end = await filled(markers=True)
    assert end == END + 1
    held, lacking = (Copy("a", "standby", "0_0", "t", "a", at) for at in (END, END - 1))
    assert await whole_of(log, [held], {"0_0": PLACE}, {PLACE: end}) == {"0_0": held}
    assert not await whole_of(log, [lacking], {"0_0": PLACE}, {PLACE: end})


async def test_what_lies_on_disk_has_all_or_is_named(tmp_path: Path) -> None:
    """Of a process that was killed while it restored, some of the keys were shown as the table."""
    log, _ = await filled(markers=True)
    topic_id = (await log.topics([PLACE.topic]))[PLACE.topic].topic_id
    stamp = {"log_id": log.log_id, "topic_id": topic_id}
    store = RocksDbStore(tmp_path / "bank" / "a" / "0_0" / "balances", stamp=stamp)
    store.write({b"ann": b"1"}, END - 2)
    store.flush()
    given = (log, "bank", {"table": "balances", "state": str(tmp_path)}, PLACE.topic, {"0_0": PLACE})
    found, problems = await state_source._on_disk(*given)
    assert not found
    assert "0_0 on a (on disk), table balances, lacks the last 3 offsets of its changelog" in problems[0]
    store.write({b"ann": b"1"}, END)
    store.close()
    found, problems = await state_source._on_disk(*given)
    assert list(found) == ["0_0"] and not problems
