"""`orchestrator log copy FROM TO [--plan]`: an application moves to another log, with its topics, positions and changelogs.

One rule: half a copy is no start. A note in the target comes first and goes last; while it stands the application is refused
there, and the same command goes on where it was. The source is read alone, under its lease, and stays as it is. Stores on
disk belong to the log that they were made from: they are restored from the changelogs of the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.cli.arguments import Parser
from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.names import counted
from state.log.group_store import GroupStore
from state.log.protocol import GroupLog, Intended
from workers.commands.log_copy_plan import Plan, planned
from workers.commands.log_copy_steps import carry_out
from workers.commands.show import show_json
from workers.fleet.held_lease import Held, lease_held, start_refused
from workers.fleet.presence import is_looked_after
from workers.log.logs import configured, log_path, open_log, show_log
from workers.prepare import COPY, DESCRIPTION, refuse_half_done


def run(argv: list[str]) -> int:
    """Runs `orchestrator log copy`; its exit code. Raises WrongUse, RefusedBySafety, AppRefused."""
    parser = Parser("log copy", "Move an application that is stopped to another log, with its positions and tables.")
    parser.add_argument("source", metavar="FROM", help="sqlite:PATH or kafka://HOST:PORT")
    parser.add_argument("target", metavar="TO", help="kafka://HOST:PORT or sqlite:PATH")
    parser.add_argument("--app", metavar="APP", help="its id; needed where several applications are on the log")
    parser.add_argument("--plan", action="store_true", help="show what would be copied, and change nothing")
    parser.add_argument("--json", action="store_true")
    parser.settings("kafka-config", "state-dir")
    args = parser.parse_args(argv)
    urls = [configured(url, args.kafka_config) for url in (args.source, args.target)]
    if "kafka-config" in args.flags and not any(url.startswith("kafka://") for url in urls):
        raise WrongUse("--kafka-config has no effect here: neither log is on Kafka; leave it out")
    if urls[0] == urls[1]:
        raise WrongUse(f"{args.source} is given twice; name the log to copy to")
    facts = asyncio.run(_run(urls[0], urls[1], args))
    if args.json:
        show_json(facts)
    else:
        print("\n".join(_lines(facts)))
    return 0


async def _run(source_url: str, target_url: str, args: Any) -> dict[str, Any]:
    source = await open_log(source_url, create=False)
    try:
        application = await _application(source, args.app)
        await refuse_half_done(source, application)
        if args.plan and not _is_there(target_url):
            plan = await planned(source, None, application)
        else:
            if not args.plan:
                await _refuse_running(source, application, source_url)
            target = await open_log(target_url, create=not args.plan)
            try:
                await _refuse_running(target, application, target_url)
                await _refuse_other(source, target, application)
                plan = await planned(source, target, application)
                if not args.plan:
                    root = Path(args.state_dir).absolute()
                    async with lease_held(target, application, "log copy") as held:
                        plan = await _copied(source, target, held, root)
            finally:
                await target.close()
    finally:
        await source.close()
    return {
        "application": application,
        "source": show_log(source_url),
        "target": show_log(target_url),
        "outcome": "plan" if args.plan else "done",
        **msgspec.to_builtins(plan),
    }


async def _copied(source: GroupLog, target: GroupLog, held: Held, root: Path) -> Plan:
    """The note comes before the source is waited for, whose lease may take seconds: a copy that is killed meanwhile would leave
    a log in which a start begins anew. One that is refused until then takes it away again."""
    application = held.lease.application
    await target.check_rights(application, Intended(seeds=True))
    is_new = await target.metadata(application, COPY, "from") is None
    await target.put_metadata(application, COPY, "from", source.log_id.encode(), lease=held.lease)
    try:
        async with (
            start_refused(source, application, root, "log copy"),
            lease_held(source, application, "log copy"),
        ):
            plan = await planned(source, target, application)
            is_new = False
            return await carry_out(source, target, held, plan)
    except BaseException:
        if is_new:
            await target.put_metadata(application, COPY, "from", None, lease=held.lease)
        raise


def _is_there(url: str) -> bool:
    """Whether the log can be looked at without making it."""
    path = log_path(url)
    return path is None or path.exists()


async def _application(source: GroupStore, named: str | None) -> str:
    """The id of the application that is copied. Raises WrongUse where that is not clear."""
    there = sorted(await source.metadata_of_all(DESCRIPTION, "app"))
    if named is not None and named not in there:
        raise WrongUse(f"the log has no application '{named}'; it has {', '.join(there) or 'none'}")
    if named is None and len(there) != 1:
        raise WrongUse(f"which application: the log has {', '.join(there) or 'none'}; name it with --app")
    return named or there[0]


async def _refuse_running(log: GroupStore, application: str, url: str) -> None:
    if await is_looked_after(log, application):
        raise RefusedBySafety(f"'{application}' runs on {show_log(url)}; stop all its instances, then copy it")


async def _refuse_other(source: GroupLog, target: GroupStore, application: str) -> None:
    """Raises RefusedBySafety where the target has the application already, and not from this copy."""
    begun = await target.metadata(application, COPY, "from")
    if begun is not None and begun.decode() != source.log_id:
        raise RefusedBySafety(
            f"a copy of '{application}' from another log ({begun.decode()}) began there and did not end; end that one first"
        )
    if begun is None and await target.metadata(application, DESCRIPTION, "app") is not None:
        raise RefusedBySafety(
            f"the target has an application '{application}' already; remove it there with `orchestrator reset`, or name another "
            "target"
        )


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    """What a person reads."""
    is_plan = facts["outcome"] == "plan"
    yield f"{facts['application']} {'would be copied' if is_plan else 'is copied'} from {facts['source']} to {facts['target']}"
    for topic in facts["topics"]:
        amount = f"up to {counted(topic['records'], 'record')}" if is_plan else counted(topic["records"], "record")
        yield f"  {topic['name']} ({topic['kind']}): {counted(topic['partitions'], 'partition')}, {amount}"
    yield f"  {counted(facts['positions'], 'position')}, {counted(facts['metadata'], 'fact')} of the application"
    if not is_plan:
        yield "the source stays as it is: run the app with the new --log, and no more with the old one"
