"""`orchestrator query APP TABLE KEY`: read a key from the store of the instance that runs its task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.requests import LocateRequest, ScanRequest, StoreRequest
from orchestrator.errors import NotThere, OrchestratorError, WrongUse
from pipeline.errors import CodecError
from pipeline.tables import expiry
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time import topic_view
from pipeline.values.json_values import from_text, shown
from pipeline.values.partitioner import partition_of
from state.log.protocol import Log, Partition
from workers.commands.show import show_json
from workers.fleet.client import FIND_S, Client, client_of, description

FRESH_S, POLL_S = 2.0, 0.05


def run(argv: list[str]) -> int:
    """Runs `orchestrator query`; its exit code. Raises NotThere where the key is not, OrchestratorError."""
    parser = Parser("query", "Read a key of a table.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("key", metavar="KEY", help="as typed for str keys, as JSON for others")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    facts = asyncio.run(_query(args))
    if args.json:
        show_json(facts)
    elif facts["found"]:
        print(json.dumps(facts["value"]))
    if not facts["found"]:
        if args.json:
            return NotThere.exit_code
        if facts["restore_lag"]:
            raise OrchestratorError(
                f"{facts['task']} is being restored, {facts['restore_lag']} records behind, and has no {args.key} yet; "
                "try again"
            )
        raise NotThere(f"table '{args.table}' has no key {args.key}; it is read from {facts['task']}")
    return 0


async def _query(args: Any) -> dict[str, Any]:
    async with client_of(args) as (application, log, client):
        described = await description(log, application)
        return await query(client, described, args.table, args.key, log)


async def query(client: Client, described: dict[str, Any], table: str, key: str, log: Log) -> dict[str, Any]:
    """The JSON shape of cli.md. A table with a route of its own is looked for in every task. Raises WrongUse."""
    facts = described["tables"].get(table)
    if facts is None:
        known = ", ".join(sorted(described["tables"])) or "none"
        raise WrongUse(f"'{described['id']}' has no table '{table}'; it has {known}")
    try:
        if facts.get("form", {"kind": "topic"})["kind"] != "topic":
            kind = facts["form"]["kind"]
            raise WrongUse(
                f"'{table}' keeps time ({kind}), and query reads plain tables; read it in a processor with at()"
            )
        data = from_text(facts["key_codec"], key)
    except CodecError as error:
        raise WrongUse(str(error)) from None
    number, count = facts["subtopology"], facts["partitions"]
    partitions = range(count) if facts["routed"] or facts["local"] else [partition_of(data, count)]
    deadline = monotonic_s() + FRESH_S
    await fresh(log, described, number, partitions, deadline)
    answer: dict[str, Any] = {}
    value: bytes | None = None
    for partition in partitions:
        is_topic = "form" in facts
        request = StoreRequest(f"{number}_{partition}", table, topic_view.LAST + data if is_topic else data)
        answer = await ask_where_it_is(client, request)
        value = await _live(client, facts.get("expire_ms"), request, answer["value"])
        if is_topic and value is not None:
            value = expiry.value_of(value)
        if value is not None:
            break
    return {
        "key": shown(facts["key_codec"], data),
        "value": shown(facts["value_codec"], value),
        "found": value is not None,
        "task": answer["task"],
        "instance": answer["instance"],
        "role": answer["role"],
        "restore_lag": answer["restore_lag"],
    }


async def fresh(log: Log, described: dict[str, Any], number: int, partitions: Iterable[int], deadline: float) -> None:
    """Wait a moment for what was in the inputs when the question was asked, so that a user who produced a record and then
    asks sees it. A task that is far behind answers with what it has."""
    sub = next(sub for sub in described["subtopologies"] if sub["number"] == number)
    inputs = [Partition(topic, partition) for topic in sub["sources"] for partition in partitions]
    ends, starts = await log.ends(inputs), await log.starts(inputs)
    while monotonic_s() < deadline:
        positions = await log.positions(described["id"], inputs)
        if all(positions.get(p, starts[p]) >= ends[p] for p in inputs):
            return
        await asyncio.sleep(POLL_S)


async def ask_where_it_is(client: Client, request: StoreRequest | ScanRequest) -> dict[str, Any]:
    """Ask the coordinator where the task is, and the instance that it names. Between two owners there is no instance to ask for
    a moment, one that has handed the task over is not asked again, and one that is still restoring does not know yet.
    Raises WrongUse."""
    deadline = monotonic_s() + FIND_S
    while True:
        try:
            place = await client.ask(LocateRequest(request.task))
            asked = msgspec.structs.replace(request, member=place["member"])
            found: dict[str, Any] = await client.ask_instance(place["address"], asked)
            if not found["restore_lag"] or monotonic_s() > deadline:
                return found
        except WrongUse as error:  # a new coordinator learns the other versions of the app one by one
            if monotonic_s() > deadline:
                raise WrongUse(f"no version of the app that runs has table '{request.table}': {error}") from None
        except OrchestratorError as error:
            if error.exit_code != 1 or monotonic_s() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def _live(client: Client, expire_ms: int | None, request: StoreRequest, raw: bytes | None) -> bytes | None:
    """The value's bytes: an expiring table keeps the time of the write before them, and its stream time under a key."""
    if raw is None or expire_ms is None:
        return raw
    if request.key == STREAM_TIME_KEY:
        return None
    time_kept = (await ask_where_it_is(client, msgspec.structs.replace(request, key=STREAM_TIME_KEY)))["value"]
    return expiry.live_value(raw, expire_ms, expiry.stream_time(time_kept))
