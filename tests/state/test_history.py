"""Which stores belong to a log's history."""

from __future__ import annotations

from state import history
from state.history import Beginning, History
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicSpec

CHANGELOG = Partition("c", 0)


def past(*entries: tuple[str, int]) -> History:
    return History([Beginning(name, {"c-0": end}) for name, end in entries])


def test_a_store_belongs_where_it_was_written_under_an_entry_and_not_beyond_the_next() -> None:
    found = past(("one", 0), ("two", 10))
    for stamped, offset in (("one", 0), ("one", 10), ("two", 3), ("two", 10), ("two", 99), ("", 99)):
        assert found.problem(stamped, CHANGELOG, offset) is None, (stamped, offset)
    assert "the log went on from 10 without what it has" in (found.problem("one", CHANGELOG, 11) or "")
    assert "another history" in (found.problem("lost", CHANGELOG, 1) or "")
    assert "another history" in (past().problem("lost", CHANGELOG, 1) or "")
    assert past(("one", 0), ("two", 10)).problem("one", Partition("new", 0), 5) is None, "a changelog made since"


async def test_each_term_begins_with_an_entry_and_the_oldest_go() -> None:
    log = MemoryLog()
    await log.create_topic(TopicSpec("c", 1, "changelog"))
    lease = None
    for term in range(1, history.KEPT + 4):
        lease = await log.acquire("x", "i1", "", lease)
        assert lease is not None
        await history.begin(log, lease, [CHANGELOG], f"id{term}")
        await log.append({CHANGELOG: [NewRecord(b"k", b"v", term)]})
    found = await history.read(log, "x")
    assert found.id == f"id{history.KEPT + 3}"
    assert found.problem("id3", CHANGELOG, 1) is not None, "pruned"
    ends = (await log.ends([CHANGELOG]))[CHANGELOG]
    assert found.problem("id4", CHANGELOG, ends) is not None and found.problem(found.id, CHANGELOG, ends) is None
