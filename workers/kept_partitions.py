"""`App(partitions=...)` of a new version, where topics are there. One rule: a number that has no effect is said once, at the start that
brings it.

A topic keeps its number, by which its keys lie: `topics grow` and `repartition` change it. Used before a start, beside
`workers/renamed_tables.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state.log.protocol import GroupLog
from workers.prepare import DESCRIPTION

if TYPE_CHECKING:
    from pipeline.app import App

SHOWN = 3


async def what_keeps_its_partitions(log: GroupLog, app: App) -> list[str]:
    """The line, or nothing. To be asked before `prepare`, which describes this version."""
    described = await log.metadata(app.id, DESCRIPTION, "app")
    before = json.loads(described).get("partitions") if described else app.partitions
    if before == app.partitions:
        return []
    there = await log.topics([topic.topic for topic in app.topics.values() if topic.partitions is None])
    kept = [
        f"{name} keeps its {info.partitions} (this version has {app.partitions})"
        for name, info in sorted(there.items())
        if info.partitions != app.partitions
    ]
    if not kept:
        return []
    more = f" and {len(kept) - SHOWN} more" if len(kept) > SHOWN else ""
    return [
        f"partitions of topics that are there stay: {', '.join(kept[:SHOWN])}{more}; `orchestrator repartition` moves an app to more, "
        "`orchestrator topics grow` gives a topic more"
    ]
