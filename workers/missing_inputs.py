"""Inputs that are not there: they are created at the start, but for one that is called almost as a topic that is, and on brokers
one that a new version of an app reads.

One rule: a name that was mistyped makes no topic on brokers, where the app would wait for records that are written to
another; what the first start of an app makes there is said. Called before `prepare`, which creates what is missing.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.errors import PipelineError
from state.log.protocol import GroupLog
from workers.prepare import DESCRIPTION, NUMBERING

CLOSE = 0.85  # a letter more or less, or two that changed places, in names of six letters and more
_DIGITS = re.compile(r"\d+")


async def missing_on_brokers(log: GroupLog, app: App, url: str) -> str:
    """What is to be said of inputs that `prepare` will make, "" where nothing is. `url`: of the log. Raises WrongUse also where the
    app has been here before: a new version reads what nobody writes."""
    missing, is_new = await refuse_mistyped(log, app)
    if not missing or not url.startswith("kafka:"):
        return ""
    if not is_new:
        raise WrongUse(
            f"'{app.id}' reads topic {missing[0]}, which is not there, and nobody writes it: correct the name, or create it with "
            "`orchestrator topics create` with this app"
        )
    them = f"topic {missing[0]} is" if len(missing) == 1 else f"topics {', '.join(missing)} are"
    return f"{them} made now, as nobody has written to {'it' if len(missing) == 1 else 'them'}; is each name right?"


async def refuse_mistyped(log: GroupLog, app: App) -> tuple[list[str], bool]:
    """Returns the inputs that are not there, and whether the app is new on this log. Raises WrongUse."""
    numbering = await log.metadata(app.id, NUMBERING, "app")
    described = await log.metadata(app.id, DESCRIPTION, "app")  # by a start that has made all that was missing
    try:
        topology = app.topology(json.loads(numbering) if numbering else None)
    except PipelineError:
        return [], True  # `prepare` refuses it with its reason
    own = {name for sub in topology.subtopologies for name in sub.sinks}
    inputs = {
        name
        for sub in topology.subtopologies
        for name in sub.sources
        if topology.topics[name].kind == "plain" and name not in own
    }
    missing = sorted(inputs - (await log.topics(sorted(inputs))).keys())
    others = sorted({*await log.names()} - topology.topics.keys()) if missing else []
    for name in missing:
        close = [one for one in get_close_matches(name, others, 1, CLOSE) if not _is_another_number(one, name)]
        if close:
            raise WrongUse(
                f"'{app.id}' reads topic {name}, which is not there; did you mean {close[0]}? Where {name} is meant, "
                "`orchestrator topics create` with this app creates it"
            )
    return missing, described is None


def _is_another_number(one: str, other: str) -> bool:
    """Names such as orders-1 and orders-2 differ on purpose."""
    return _DIGITS.sub("", one) == _DIGITS.sub("", other)
