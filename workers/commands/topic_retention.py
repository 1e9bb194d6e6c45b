"""`orchestrator topics set APP TOPIC --retention 7d --retention-bytes 1GiB`: how long a topic is kept, while its apps run or not.

One rule: a limit that is not named stays as it is; `forever` takes it away; `--force` counts until the next change. On the embedded log the coordinator's instance removes
what is past it, within a minute or two, and keeps what an application has yet to read unless the limit is forced.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import PLACE
from orchestrator.durations import parse_duration_ms, parse_size_bytes
from orchestrator.errors import WrongUse
from state.log.protocol import Retention
from workers.commands.show import show_json
from workers.commands.topic_list import OWN, roles_of, span
from workers.fleet.client import description, log_of

FOREVER = "forever"


def run(argv: list[str]) -> int:
    """Runs `orchestrator topics set`; its exit code. Raises WrongUse."""
    parser = Parser("topics set", "Change how long a topic is kept; what an application has yet to read stays.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--retention",
        metavar="TIME",
        help=f"7d, 12h, or {FOREVER}: since a record was appended, on Kafka since its own time",
    )
    parser.add_argument("--retention-bytes", metavar="SIZE", help=f"of each partition: 10GiB, or {FOREVER}")
    parser.add_argument(
        "--force", action="store_true", help="also what an application of this log has yet to read; brokers always do"
    )
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    if args.retention is None and args.retention_bytes is None:
        raise WrongUse("nothing to set: give --retention, --retention-bytes, or both")
    facts, was_forced = asyncio.run(_set(args))
    if args.json:
        show_json(facts)
    else:
        given = [span(facts["retention_ms"])] if facts["retention_ms"] is not None else []
        given += [f"{facts['retention_bytes']} bytes a partition"] if facts["retention_bytes"] is not None else []
        unread = ", also where an application has yet to read it" if given and facts["forced"] else ""
        print(f"{facts['topic']} is kept {'for ' + ' or '.join(given) if given else 'for ever'}{unread}")
    if was_forced and not facts["forced"]:
        print(
            "warning: it was set with --force, and is not any more: what an application has yet to read stays",
            file=sys.stderr,
        )
    return 0


async def _set(args: Any) -> tuple[dict[str, Any], bool]:
    """What is kept now, and whether it was forced before. Raises WrongUse for a topic that the app does not name, or that has no retention."""
    async with log_of(args) as (application, log, _):
        roles = roles_of(await description(log, application))
        found = (await log.topics([args.topic])).get(args.topic)
        role = roles.get(args.topic)
        if found is None or role is None:
            raise WrongUse(f"'{application}' has no topic '{args.topic}'; it has {', '.join(sorted(roles))}")
        if role in OWN or found.kind != "plain":  # one that was made by hand may have the settings of any other topic
            what = role if role in OWN else found.kind
            raise WrongUse(f"{args.topic} is a topic of {application}'s own ({what}), which keeps what it has to")
        before = found.retention
        ms = before.ms if args.retention is None else _limit(args.retention, parse_duration_ms)
        size = before.bytes if args.retention_bytes is None else _limit(args.retention_bytes, parse_size_bytes)
        after = (await log.set_retention(args.topic, Retention(ms, size, args.force))).retention
    facts = {"topic": args.topic, "retention_ms": after.ms, "retention_bytes": after.bytes, "forced": after.forced}
    return {"application": application, **facts}, before.forced


def _limit(text: str, parse: Any) -> int | None:
    """Raises WrongUse."""
    if text == FOREVER:
        return None
    found = int(parse(text))
    if found < 1:
        raise WrongUse(f"'{text}' keeps nothing; give more, or {FOREVER}")
    return found
