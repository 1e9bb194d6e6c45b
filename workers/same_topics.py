"""Whether the topics of the log are those that an application has run on: the log keeps the id of each.

One rule: a topic of the same name is not the same topic. What is missing of these is not made anew beside state and positions
that came from the one before. Asked by `prepare`, by a start (workers/topic_identities.py), and while workers run (workers/worker/growth.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from pipeline.definitions.topology import Topology
from state.log.group_store import GroupStore, MetadataKind
from state.log.protocol import GroupLog, TopicInfo
from workers.errors import AppRefused

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


async def refuse_others(log: GroupStore, topology: Topology, there: Mapping[str, TopicInfo]) -> None:
    """Raises AppRefused where one of the topics that the app ran on is gone, or is another one by now."""
    for name, topic_id in sorted((await log.metadata_of(topology.app_id, TOPIC_IDS)).items()):
        if reason := problem(name, topic_id.decode(errors="replace"), there.get(name), topology):
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
