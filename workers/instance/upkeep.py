"""What the coordinator's instance does for the log now and then: records past their retention go, changelogs are compacted.

One rule: what an application of this log has yet to read stays, and the topic of a global table, which each start reads whole,
unless the retention is forced. It runs beside the coordinator,
in a process that processes nothing; a log on brokers, which do both by themselves, answers that there is nothing to do. Which
positions there are is kept as well, where brokers may lose them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from orchestrator.clocks import wall_ms
from state.errors import StateError
from state.log.group_store import MetadataKind
from state.log.protocol import GroupLog, Partition, TopicInfo
from workers.instance.allocator import give_back
from workers.prepare import DESCRIPTION
from workers.topic_identities import keep_seen

log = logging.getLogger("orchestrator.upkeep")
EVERY_S = 60.0
# A share of a changelog's records: those that came since its last compaction (Kafka: min.cleanable.dirty.ratio)
DIRTY_SHARE = 0.5
AT_MOST_EVERY_MS = (
    24 * 3_600_000
)  # after which a changelog with anything new is compacted all the same: deletions go then


COMPACTIONS = MetadataKind("compactions")  # of each changelog, by any coordinator


@dataclass(frozen=True, slots=True)
class _Compacted:
    """A changelog at its last compaction: where its partitions ended, how many records stayed, and when; its topic's id, as one that
    is made anew is another."""

    topic_id: str
    ends: int = 0
    kept: int = 0
    at_ms: int = 0


class LogUpkeep:
    """See the module text. `application` is the coordinator's; its topics are looked after, for all that read them."""

    def __init__(self, log_: GroupLog, application: str, wall_ms: Callable[[], int] = wall_ms) -> None:
        self._log = log_
        self._application = application
        self._wall_ms = wall_ms
        self._compacted: dict[str, _Compacted] | None = None

    async def run(self) -> None:
        """A round now and then, until cancelled. A log that is away or full is left for the next one."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                if await self.round():
                    await asyncio.to_thread(give_back)
            except StateError as error:
                log.info("upkeep of the log: %s", error)

    async def round(self) -> int:
        """Returns how many records this round removed. Raises StateError."""
        described = await self._log.metadata(self._application, DESCRIPTION, "app")
        if described is None:
            return 0
        kept = json.loads(described)
        names = [*kept["topics"], *(table["changelog_topic"] for table in kept["tables"].values())]
        topics = await self._log.topics(names)
        if self._log.position_lifetime_ms is not None:  # they may go while the app runs
            inputs = [Partition(info.name, number) for info in topics.values() for number in range(info.partitions)]
            await keep_seen(self._log, self._application, _read_by(kept, inputs))
        removed = await self._retain([info for info in topics.values() if info.kind == "plain"])
        for info in topics.values():
            if info.kind == "changelog":
                removed += await self._compact(info)
        return removed

    # ---- retention

    async def _retain(self, topics: list[TopicInfo]) -> int:
        partitions = [Partition(info.name, number) for info in topics for number in range(info.partitions)]
        expired = await self._log.expired(partitions)
        starts = await self._log.starts(list(expired))
        past = {partition: position for partition, position in expired.items() if position > starts[partition]}
        if not past:
            return 0
        forced = {info.name for info in topics if info.retention.forced}
        held_back = [partition for partition in past if partition.topic not in forced]
        for application, described in (await self._log.metadata_of_all(DESCRIPTION, "app")).items():
            kept = json.loads(described)
            read, whole = _read_by(kept, held_back), _read_whole_by(kept, held_back)
            positions = await self._log.positions(application, read)
            for partition in {*read, *whole}:
                past[partition] = min(past[partition], 0 if partition in whole else positions.get(partition, 0))
        return await self._log.trim({p: position for p, position in past.items() if position > starts[p]})

    # ---- compaction

    async def _compact(self, info: TopicInfo) -> int:
        """By the share of what is new, and once a day where anything is."""
        partitions = [Partition(info.name, number) for number in range(info.partitions)]
        ends = sum((await self._log.ends(partitions)).values())
        before, now_ms = await self._latest(info), self._wall_ms()
        new = ends - before.ends
        is_due = new > 0 and not 0 <= now_ms - before.at_ms < AT_MOST_EVERY_MS
        if not is_due and new <= before.kept * DIRTY_SHARE / (1 - DIRTY_SHARE):
            return 0
        done = await self._log.compact(info.name)
        is_ours = any(done)  # brokers do it by themselves, and say nothing of it
        made = _Compacted(info.topic_id, ends, done.kept if is_ours else ends, now_ms)
        assert self._compacted is not None
        self._compacted[info.name] = made
        if is_ours:
            await self._log.put_metadata(self._application, COMPACTIONS, info.name, json.dumps(asdict(made)).encode())
        return done.removed

    async def _latest(self, info: TopicInfo) -> _Compacted:
        """Its last compaction, by this coordinator or one before it: what is compacted anew is read whole."""
        if self._compacted is None:
            noted = await self._log.metadata_of(self._application, COMPACTIONS)
            self._compacted = {name: _read(raw) for name, raw in noted.items()}
        found = self._compacted.get(info.name)
        return found if found is not None and found.topic_id == info.topic_id else _Compacted(info.topic_id)


def _read(raw: bytes) -> _Compacted:
    """Of any version, which may note more."""
    noted = json.loads(raw)
    return _Compacted(noted["topic_id"], noted["ends"], noted["kept"], noted["at_ms"])


def _read_by(described: Mapping[str, object], partitions: Sequence[Partition]) -> list[Partition]:
    """Those of the partitions that the application reads."""
    subtopologies: list[Mapping[str, list[str]]] = described["subtopologies"]  # type: ignore[assignment]
    sources = {name for sub in subtopologies for name in sub["sources"]}
    return [partition for partition in partitions if partition.topic in sources]


def _read_whole_by(described: Mapping[str, object], partitions: Sequence[Partition]) -> set[Partition]:
    """Those that are global tables of the application: each of its workers reads them from their beginning when it starts."""
    topics: Mapping[str, Mapping[str, object]] = described["topics"]  # type: ignore[assignment]
    return {partition for partition in partitions if topics.get(partition.topic, {}).get("is_global")}
