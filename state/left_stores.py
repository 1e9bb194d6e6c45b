"""Stores that lie on disk while nothing runs: whether what they have is what the log has, as a start of the app would judge it.

One rule: who only reads passes over what a start would wipe: a store of another log, of a changelog that was made anew (a
reset on another machine), or of what a log that was restored from a backup has lost. Used by `table`, audits and `orchestrator.state`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from state import history
from state.changelog import foreign, misplaced
from state.history import History
from state.log.protocol import GroupLog, Partition, TopicInfo
from state.store.rocksdb import Peek


class LeftStores:
    """Judges stores by their changelogs."""

    def __init__(
        self, log_id: str, topics: Mapping[str, TopicInfo], ends: Mapping[Partition, int], past: History
    ) -> None:
        self._log_id, self._topics, self._ends, self._past = log_id, topics, ends, past

    def problem(self, changelog: Partition, seen: Peek) -> str | None:
        """Why a store of this changelog is none of it, or None where it is, or where that is not known: who made it ended before it said so."""
        info, end = self._topics.get(changelog.topic), self._ends.get(changelog)
        if info is None or end is None or not (seen.offset or seen.stamp.get("log_id")):
            return None
        why = misplaced(seen.stamp, changelog.number)
        why = why or foreign(seen.offset, seen.stamp, log_id=self._log_id, topic_id=info.topic_id, end=end)
        return why or self._past.problem(seen.stamp.get(history.STAMP, ""), changelog, seen.offset)


async def left_stores(log: GroupLog, application: str, changelogs: Collection[str]) -> LeftStores:
    topics = await log.topics(changelogs)
    parts = [Partition(name, number) for name, info in topics.items() for number in range(info.partitions)]
    return LeftStores(log.log_id, topics, await log.ends(parts), await history.read(log, application))
