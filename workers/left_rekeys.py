"""Re-keys of a version before that this one does not have. One rule: records that wait in one, and that nothing will read, are named at each
start.

The position of the input is past them, so no other re-key sends them again: only the version that sent them reads them. Used before a
start, beside `workers/renamed_tables.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from orchestrator.names import counted
from state.log.protocol import GroupLog, Partition
from workers.prepare import DESCRIPTION

if TYPE_CHECKING:
    from pipeline.app import App


async def what_is_left_unread(log: GroupLog, app: App) -> list[str]:
    """A line for each re-key topic with records that wait, which this version does not read."""
    described = await log.metadata(app.id, DESCRIPTION, "app")
    before = json.loads(described)["topics"] if described else {}
    read = {topic.topic for processor in app.processors.values() for topic in processor.sources}
    read |= {table.source.topic for table in app.tables.values() if table.source is not None}
    gone = [name for name, facts in before.items() if facts["kind"] == "repartition" and name not in read]
    lines = []
    for name, info in sorted((await log.topics(gone)).items()) if gone else ():
        partitions = [Partition(name, number) for number in range(info.partitions)]
        begins = {**await log.starts(partitions), **await log.positions(app.id, partitions, settled=False)}
        waiting = sum(max(0, end - begins[one]) for one, end in (await log.ends(partitions)).items())
        if waiting:
            lines.append(
                f"{counted(waiting, 'record')} {'waits' if waiting == 1 else 'wait'} in {name}, a re-key that this version does not read: they "
                "are in none of its tables; run the version before until it has read them"
            )
    return lines
