"""Inputs that are not there: they are created at the start, but for one that is called almost as a topic that is.

One rule: a name that was mistyped makes no topic on brokers, where the app would wait for records that are written to
another. Called before `prepare`, which creates what is missing.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.errors import PipelineError
from state.log.protocol import GroupLog
from workers.prepare import NUMBERING

CLOSE = 0.85  # a letter more or less, or two that changed places, in names of six letters and more
_DIGITS = re.compile(r"\d+")


async def refuse_mistyped(log: GroupLog, app: App) -> None:
    """Raises WrongUse."""
    numbering = await log.metadata(app.id, NUMBERING, "app")
    try:
        topology = app.topology(json.loads(numbering) if numbering else None)
    except PipelineError:
        return  # `prepare` refuses it with its reason
    own = {name for sub in topology.subtopologies for name in sub.sinks}
    inputs = {
        name
        for sub in topology.subtopologies
        for name in sub.sources
        if topology.topics[name].kind == "plain" and name not in own
    }
    missing = inputs - (await log.topics(sorted(inputs))).keys()
    if not missing:
        return
    others = sorted({*await log.names()} - topology.topics.keys())
    for name in sorted(missing):
        close = [one for one in get_close_matches(name, others, 1, CLOSE) if not _is_another_number(one, name)]
        if close:
            raise WrongUse(
                f"'{app.id}' reads topic {name}, which is not there; did you mean {close[0]}? Where {name} is meant, "
                "`orchestrator topics create` with this app creates it"
            )


def _is_another_number(one: str, other: str) -> bool:
    """Names such as orders-1 and orders-2 differ on purpose."""
    return _DIGITS.sub("", one) == _DIGITS.sub("", other)
