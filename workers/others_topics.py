"""Topics that are another application's own: its changelogs, re-keys and facts are written by it alone.

One rule: an app whose output is such a topic is refused before anything is made or written: a record that it sent there would be a
row of the other's table, and no check of that one could tell. To read one is no harm. Asked by `prepare`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state.log.group_store import GroupStore, MetadataKind
from workers.errors import AppRefused

if TYPE_CHECKING:
    from pipeline.definitions.topology import Topology

FACTS = "-orchestrator"
OWN = {"-changelog": "a changelog", "-repartition": "a re-key topic", FACTS: "the topic of facts"}


async def refuse_written(log: GroupStore, topology: Topology, descriptions: MetadataKind) -> None:
    """Raises AppRefused for an output that another application of this log has as its own; `descriptions`: where each start leaves what
    its application has."""
    outputs = {name for name, topic in topology.topics.items() if topic.written and topic.kind == "plain"}
    doubtful = [name for name in sorted(outputs) if name.endswith(tuple(OWN))]
    if not doubtful:
        return
    for owner, described in sorted((await log.metadata_of_all(descriptions, "app")).items()):
        own = _own(owner, json.loads(described)) if owner != topology.app_id else set()
        for name in doubtful:
            if name in own:
                what = next(word for ending, word in OWN.items() if name.endswith(ending))
                raise AppRefused(
                    f"'{topology.app_id}': topic {name} is {what} of application '{owner}', which it alone may write; choose another "
                    "name for the output"
                )


def _own(application: str, described: dict[str, dict[str, dict[str, str]]]) -> set[str]:
    """Of an application, by what a start of it left in the log."""
    changelogs = {table["changelog_topic"] for table in described["tables"].values() if "changelog_topic" in table}
    rekeys = {name for name, topic in described["topics"].items() if topic["kind"] != "plain"}
    return changelogs | rekeys | {application + FACTS}
