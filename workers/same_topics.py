"""Whether the topics of the log are those that an application has run on: the log keeps the id of each.

One rule: a topic of the same name is not the same topic. What is missing of these is not made anew beside state and positions
that came from the one before. Asked by `prepare`, by a start (workers/topic_identities.py), and while workers run (workers/worker/growth.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from state.log.group_store import MetadataKind
from state.log.protocol import FOR_EVER, GroupLog, TopicInfo
from workers.errors import AppRefused

if TYPE_CHECKING:
    from pipeline.definitions.topology import Topology

TOPIC_IDS = MetadataKind("topic-ids")
LOOKS, LOOK_S = 10, 0.2


async def topics_there(log: GroupLog, topology: Topology, beside: Collection[str] = ()) -> Mapping[str, TopicInfo]:
    """Those of an application, and others `beside` them, that are there. One that it ran on is looked for some times: a process asks
    whichever broker answers first, and that may hear of a topic later than the one which made it, or have just come back."""
    kept = await log.metadata_of(topology.app_id, TOPIC_IDS)
    names = list({*topology.topics, *beside})
    there = await log.topics(names)
    for _ in range(LOOKS - 1):
        if not any(problem(name, "", None, topology) for name in kept.keys() - there.keys()):
            break
        await asyncio.sleep(LOOK_S)
        there = await log.topics(names)
    return there


async def refuse_others(log: GroupLog, topology: Topology, there: Mapping[str, TopicInfo]) -> None:
    """Raises AppRefused where one of the topics that the app ran on is gone, or is another one by now."""
    kept = {
        name: found.decode(errors="replace")
        for name, found in (await log.metadata_of(topology.app_id, TOPIC_IDS)).items()
    }
    if any(problem(name, kept[name], there.get(name), topology) for name in kept):
        there = await topics_there(log, topology)  # a process that starts beside this one has made some since
    for name in sorted(kept):
        if reason := problem(name, kept[name], there.get(name), topology):
            raise AppRefused(f"'{topology.app_id}': {reason}")


def problem(
    name: str, topic_id: str, info: TopicInfo | None, topology: Topology, when: str = "since the app ran"
) -> str:
    """Why the application cannot go on with this topic; "" where it can, or does not use it any more."""
    topic = topology.topics.get(name)
    if topic is None or (topic.kind == "plain" and not is_read(topology, name)):
        return ""
    if info is not None and info.topic_id == topic_id:
        return ""
    what = f"was deleted {when}" if info is None else f"was deleted and created again {when}"
    if topic.kind == "changelog":
        return (
            f"changelog {name} {what}: its table would be empty, and positions would go on behind what it had counted; go on "
            f"under another id, or with what is there by `orchestrator topics accept {topology.app_id} {name}`"
        )
    return (
        f"topic {name} {what}: what stands in state and outputs came from the one before; go on under another id, or "
        f"with the new topic by `orchestrator topics accept {topology.app_id} {name}`"
    )


def is_read(topology: Topology, name: str) -> bool:
    """Whether it is an input or a re-key topic of a task."""
    return any(name in sub.sources for sub in topology.subtopologies)


def loses(kind: str, found: TopicInfo) -> str:
    """Why a topic that the app uses as one of this kind would not keep what it needs; "" where it does. A topic may have been
    made before the app, with a cluster's own settings."""
    if kind == "changelog" and found.kind == "changelog" and found.retention != FOR_EVER:
        return (
            f"changelog {found.name} is compacted, and deleted from with time or size, too: values would be gone after a restore; set its "
            "cleanup.policy to compact alone"
        )
    if kind == "repartition" and found.kind == "changelog":
        return (
            f"re-key topic {found.name} is compacted: of records with one key all but the last may be gone before they are read; set its "
            "cleanup.policy to delete, its retention.ms and its retention.bytes to -1"
        )
    if kind == "repartition" and found.retention != FOR_EVER:
        return (
            f"re-key topic {found.name} is deleted from with time or size: records with old times, or behind a standstill, would be gone "
            "before they are read; set its retention.ms and its retention.bytes to -1: what was read is deleted anyway"
        )
    return ""
