"""Inputs that are not there: they are created at the start, but for one that is called almost as a topic that is, and on brokers
one that a new version of an app reads.

One rule: a name that was mistyped makes no topic beside the one that is meant, where the app would wait for records that are written to
that. What is made all the same is said: on brokers by the first command with an app, on an embedded log, where nothing but
its apps makes topics, for a new version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING

from orchestrator.errors import WrongUse
from pipeline.errors import PipelineError
from state.log.protocol import GroupLog
from workers.kept_partitions import what_keeps_its_partitions
from workers.left_rekeys import what_is_left_unread
from workers.prepare import DESCRIPTION, NUMBERING, Prepared, prepare, refuse_half_done
from workers.renamed_tables import what_begins_empty

if TYPE_CHECKING:
    from pipeline.app import App

CLOSE = 0.85  # a letter more or less, or two that changed places, in names of six letters and more
SLIP_FROM = 5  # letters of names that one slip tells apart: shorter ones differ by a letter on purpose
_DIGITS, _SEPARATORS = re.compile(r"\d+"), re.compile(r"[._-]+")


async def prepare_and_say(
    log: GroupLog, app: App, url: str, say: Callable[[str], object], written: str = "", *, runs: bool = True
) -> Prepared:
    """`prepare`, and the lines for it: of topics that are made or keep what they have, of tables that begin empty, of records
    that nothing reads. Raises what `what_is_made` does. `runs`: whether the caller is about to run tasks."""
    await refuse_half_done(log, app.id)
    lines = [
        await what_is_made(log, app, url, written),
        *await what_begins_empty(log, app),
        *await what_keeps_its_partitions(log, app),
        *(await what_is_left_unread(log, app) if runs else ()),
    ]
    prepared = await prepare(log, app, runs=runs)
    for line in filter(None, lines):
        say(line)
    return prepared


async def what_is_made(log: GroupLog, app: App, url: str, written: str = "") -> str:
    """What is to be said of inputs that `prepare` will make, "" where nothing is. `url`: of the log; `written`: the topic that who
    asks is about to write. Raises WrongUse also where, on brokers, the app has been here before: a new version reads what nobody
    writes."""
    missing, is_new = await refuse_mistyped(log, app)
    missing = [name for name in missing if name != written]
    on_brokers = url.startswith("kafka:")
    if not missing or (is_new and not on_brokers):
        return ""
    if on_brokers and not is_new:
        raise WrongUse(
            f"'{app.id}' reads topic {missing[0]}, which is not there, and nobody writes it: correct the name, or create it with "
            "`orchestrator topics create` with this app"
        )
    if len(missing) == 1:
        return f"topic {missing[0]} is made now, as nobody has written to it; is the name right?"
    return f"topics {', '.join(missing)} are made now, as nobody has written to them; is each name right?"


async def refuse_mistyped(log: GroupLog, app: App) -> tuple[list[str], bool]:
    """Returns the inputs that are not there, and whether the app is new on this log. Raises WrongUse."""
    numbering = await log.metadata(app.id, NUMBERING, "app")
    described = await log.metadata(app.id, DESCRIPTION, "app")  # by a start that has made all that was missing
    try:
        topology = app.topology(json.loads(numbering) if numbering else None)
    except PipelineError:
        return [], True  # `prepare` refuses it with its reason
    own = {name for sub in topology.subtopologies for name in sub.sinks}
    read = {name for sub in topology.subtopologies for name in sub.sources}
    read |= {table.of.topic for table in app.globals.values()}
    inputs = {name for name in read if topology.topics[name].kind == "plain" and name not in own}
    missing = sorted(inputs - (await log.topics(sorted(inputs))).keys())
    before = json.loads(described)["topics"] if described else ()  # an embedded log has no names but those of its apps
    others = sorted({*await log.names(), *before} - topology.topics.keys()) if missing else []
    for name in missing:
        if (close := closest(name, others)) is not None:
            raise WrongUse(
                f"'{app.id}' reads topic {name}, which is not there; did you mean {close}? Where {name} is meant, "
                "`orchestrator topics create` with this app creates it"
            )
    return missing, described is None


def closest(name: str, others: Collection[str]) -> str | None:
    """The topic that `name` may be a mistyped name of; None where one is called the same but for a number: that is another."""
    if any(_is_another_number(one, name) for one in others):
        return None
    slips = [one for one in others if _plain(one) == _plain(name) or _is_one_slip(one, name)]
    return next(iter(slips or get_close_matches(name, others, 1, CLOSE)), None)


def _is_another_number(one: str, other: str) -> bool:
    """Names such as orders-1 and orders-2 differ on purpose."""
    return _DIGITS.sub("", one) == _DIGITS.sub("", other)


def _plain(name: str) -> str:
    """Without what is easily taken for something else: large letters, and what stands between words."""
    return _SEPARATORS.sub("", name.casefold())


def _is_one_slip(one: str, other: str) -> bool:
    """Whether they differ by a letter that is missing, or another one, or by two that changed places."""
    short, long = sorted((one, other), key=len)
    if len(short) < SLIP_FROM:
        return False
    same = next((at for at, letter in enumerate(short) if letter != long[at]), len(short))
    short, long = short[same:], long[same:]
    if len(short) < len(long):
        return short == long[1:]
    return short[1:] == long[1:] or (short[:2] == long[1::-1] and short[2:] == long[2:])
