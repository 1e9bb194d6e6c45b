"""`orchestrator reset APP [--plan]`: an application begins anew: positions forgotten, changelogs and re-keys deleted, state removed.

One rule: half a reset is no start. A note in the log comes first and goes last; while it stands the application is refused at
its start, and the same command goes on where it was. Inputs and outputs of the app stay as they are. The order of the steps
between the two writes is free: each may be done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import PLACE
from orchestrator.clocks import wall_ms
from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.names import counted
from state.directory import StateDirectory
from state.errors import DirectoryLocked, UnknownTopic
from state.history import HISTORY
from state.log.base import BASE
from state.log.cut_changelogs import STARTS
from state.log.group_store import GroupStore, Lease
from state.log.protocol import GroupLog, Intended, Partition
from workers.commands.run import state_dir
from workers.commands.show import show_json
from workers.fleet.client import log_of
from workers.fleet.held_lease import Held, lease_held, start_refused
from workers.fleet.presence import hold, is_looked_after
from workers.instance.ledger import OPERATION
from workers.prepare import BACKFILLED, BEGINNING, BEGUN, DESCRIPTION, NUMBERING, RESET, refuse_repartitioned
from workers.same_topics import TOPIC_IDS
from workers.tasks.halts import HALTS
from workers.topic_identities import SEEN, TAKEN

UNDER_LEASE = (BASE, HISTORY, OPERATION, BACKFILLED, STARTS)
FORGOTTEN = (
    HALTS,
    BEGUN,
    BEGINNING,
    SEEN,
    TAKEN,
    TOPIC_IDS,
    NUMBERING,
    DESCRIPTION,
)  # what the application knew of itself; its secret stays


class Plan(msgspec.Struct, frozen=True):
    """What a reset removes. `positions`: how many there are of each input; `partitions` of it, which are asked for. `deleted`:
    topics of the application's own; `state`: folders of tasks on this machine, by instance; `gone`: how many positions at the
    beginning of inputs hold no records any more, so that tables do not come to what they had."""

    partitions: dict[str, int]
    positions: dict[str, int]
    deleted: list[str]
    kept: list[str]
    state: dict[str, list[str]]
    gone: dict[str, int] = {}

    def forgotten(self) -> list[Partition]:
        return [Partition(topic, number) for topic, count in self.partitions.items() for number in range(count)]


def run(argv: list[str]) -> int:
    """Runs `orchestrator reset`; its exit code. Raises WrongUse, RefusedBySafety."""
    parser = Parser(
        "reset", "Let an application begin anew: forget its positions, delete its tables and re-keys, remove its state."
    )
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--plan", action="store_true", help="show what would go, and change nothing")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    facts = asyncio.run(_run(args))
    if args.json:
        show_json(facts)
    else:
        print("\n".join(_lines(facts)))
    return 0


async def _run(args: Any) -> dict[str, Any]:
    async with log_of(args) as (application, log, url):
        root = Path(state_dir(args, url))
        plan = await _planned(log, application, root)
        if await is_looked_after(log, application):
            if not args.plan:
                raise RefusedBySafety(f"'{application}' runs; stop all its instances, then reset it")
        elif not args.plan:
            with _alone(application, root):
                async with (
                    start_refused(log, application, root, "reset"),
                    lease_held(log, application, "reset") as held,
                ):
                    await _carry_out(log, held, plan, root)
        return {"application": application, "outcome": "plan" if args.plan else "done", **msgspec.to_builtins(plan)}


# ---------------------------------------------------------------- the plan


async def _planned(log: GroupLog, application: str, root: Path) -> Plan:
    """Of a reset that began and did not end, what is left of it. Raises WrongUse for an application the log does not know,
    RefusedBySafety where another one reads what would be deleted."""
    begun = await log.metadata(application, RESET, "plan")
    found = await log.metadata(application, DESCRIPTION, "app")
    if begun is None and found is None:
        raise WrongUse(f"the log knows no application '{application}', so there is nothing to reset")
    await refuse_repartitioned(log, application, "a reset")
    described = json.loads(found) if found is not None else {"topics": {}, "tables": {}, "subtopologies": []}
    earlier = msgspec.json.decode(begun, type=Plan) if begun is not None else Plan({}, {}, [], [], {})
    own = {table["changelog_topic"] for table in described["tables"].values()}
    own |= {name for name, topic in described["topics"].items() if topic["kind"] == "repartition"}
    own |= set(earlier.deleted)
    read = {name for sub in described["subtopologies"] for name in sub["sources"]} | set(earlier.partitions)
    read |= set(await log.metadata_of(application, SEEN))
    there = await log.topics(sorted({*own, *read, *described["topics"]}))
    await _refuse_shared(log, application, {name for name in own if name in there})
    partitions = {name: there[name].partitions for name in sorted(read - own) if name in there}
    asked = [Partition(name, number) for name, count in partitions.items() for number in range(count)]
    positions, starts = await log.positions(application, asked), await log.starts(asked)
    return Plan(
        partitions,
        {name: sum(one.topic == name for one in positions) for name in partitions},
        sorted(name for name in own if name in there),
        sorted({*described["topics"], *earlier.kept} - own),
        {one.path.name: one.tasks() for one in _directories(application, root)},
        {name: count for name in partitions if (count := sum(at for p, at in starts.items() if p.topic == name))}
        if described["tables"]
        else {},
    )


async def _refuse_shared(log: GroupStore, application: str, own: Collection[str]) -> None:
    """Raises RefusedBySafety where another application of the log reads one of these topics."""
    for other, kept in (await log.metadata_of_all(DESCRIPTION, "app")).items():
        described = json.loads(kept)
        read = {name for sub in described["subtopologies"] for name in sub["sources"]}
        read |= {name for name, topic in described["topics"].items() if topic.get("is_global")}
        read &= set(own)
        if other != application and read:
            raise RefusedBySafety(
                f"'{other}' reads {', '.join(sorted(read))}, which a reset of '{application}' deletes; reset '{other}' first, or "
                f"let '{application}' begin under another id"
            )


def _directories(application: str, root: Path) -> Iterator[StateDirectory]:
    """The state of each instance on this machine."""
    for folder in sorted((root / application).glob("*/")):
        yield StateDirectory(root, application, folder.name)


# ---------------------------------------------------------------- alone


@contextlib.contextmanager
def _alone(application: str, root: Path) -> Iterator[None]:
    """No fleet can start with this state, and no task is open. Raises RefusedBySafety."""
    folder = root / application
    if not folder.exists():
        yield
        return
    refusal = f"'{application}' is run by process {{holder}}, with state in {folder}; stop it, then reset it"
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, hold(folder / "fleet.lock", refusal))
        for directory in _directories(application, root):
            for task in directory.tasks():
                try:
                    directory.lock(task).release()
                except DirectoryLocked as error:
                    raise RefusedBySafety(f"{error}; then reset '{application}'") from None
        yield


# ---------------------------------------------------------------- the steps


async def _carry_out(log: GroupLog, held: Held, plan: Plan, root: Path) -> None:
    application = held.lease.application
    await log.check_rights(application, Intended(deleted=plan.deleted, forgets=bool(plan.partitions)))
    await log.put_metadata(application, RESET, "plan", msgspec.json.encode(plan), lease=held.lease)
    await _fence(log, held.lease)
    await log.forget_positions(held.lease, plan.forgotten())
    for name in plan.deleted:
        with contextlib.suppress(UnknownTopic):
            await log.delete_topic(name)
    for directory in _directories(application, root):
        await asyncio.to_thread(directory.clean, (), delay_ms=0, now_ms=wall_ms() + 1)
        if directory.tasks():
            raise RefusedBySafety(f"{directory.path} is in use; stop what runs there, and reset '{application}' again")
    await held.check()
    for kind in UNDER_LEASE:
        for key in await log.metadata_of(application, kind):
            await log.put_metadata(application, kind, key, None, lease=held.lease)
    for kind in FORGOTTEN:
        for key in await log.metadata_of(application, kind):
            await log.put_metadata(application, kind, key, None)
    await log.put_metadata(application, RESET, "plan", None, lease=held.lease)


async def _fence(log: GroupLog, lease: Lease) -> None:
    """A worker that was stopped and wakes up later commits nothing into what begins anew."""
    ids = {record.transactional_id for record in (await log.owners(lease.application)).values()} - {""}
    if ids:
        await log.fence(lease, sorted(ids))


# ---------------------------------------------------------------- shown


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    """What a person reads."""
    is_plan = facts["outcome"] == "plan"
    yield f"{facts['application']}: {'a reset would remove' if is_plan else 'begins anew; removed'}"
    for name, count in facts["positions"].items():
        yield f"  {counted(count, 'position')} in {name}"
    for name in facts["deleted"]:
        yield f"  topic {name}"
    for instance, tasks in facts["state"].items():
        if tasks:
            yield f"  state of {instance} on this machine: {counted(len(tasks), 'task')}"
    if facts["kept"]:
        yield f"stays: {', '.join(facts['kept'])}; records that are processed again write their outputs again"
    for name, count in facts["gone"].items():
        lost = "is not computed again" if is_plan else "is gone for good"
        yield f"warning: {name} has lost its first {counted(count, 'position')} to its retention; what the tables had of them {lost}"
