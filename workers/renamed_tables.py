"""Tables that a new version of an app has under other names. One rule: what begins empty behind records that were processed is said.

A table is known by its name: one that was renamed is another one, as in Kafka Streams, and what it is of is not read again. Used
before a start, beside `workers/missing_inputs.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state.log.protocol import GroupLog
from workers.prepare import DESCRIPTION

if TYPE_CHECKING:
    from pipeline.app import App

_TYPES = ("key_codec", "value_codec", "form")


async def what_begins_empty(log: GroupLog, app: App) -> list[str]:
    """A line for each table that no version before had, where one of the same types is not in this one. To be asked before
    `prepare`, which describes this version."""
    described = await log.metadata(app.id, DESCRIPTION, "app")
    before = json.loads(described).get("tables", {}) if described else {}
    described_now = app.describe()["tables"] if before else {}
    of_topics = {name for name, table in app.tables.items() if table.source is not None}  # filled from their topics
    new = {name: facts for name, facts in described_now.items() if name not in before and name not in of_topics}
    lines = []
    for name, facts in sorted(new.items()):
        gone = [one for one, old in sorted(before.items()) if one not in app.tables and _types(old) == _types(facts)]
        if gone:
            lines.append(
                f"table {name} is new and begins empty; {' and '.join(gone)}, of the same types, "
                f"{'is' if len(gone) == 1 else 'are'} not in this version: a table that is renamed is another one"
            )
    return lines


def _types(facts: dict[str, object]) -> list[object]:
    return [facts.get(name) for name in _TYPES]
