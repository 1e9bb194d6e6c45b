"""`orchestrator query APP TABLE KEY`: read a key from the store of the instance that runs its task."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

import msgspec

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.coordinator.requests import StoreRequest
from orchestrator.errors import NotThere, OrchestratorError, WrongUse
from orchestrator.names import counted
from pipeline.errors import CodecError
from pipeline.tables import expiry
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.time.durations import time_of_text
from pipeline.time.stored_form import StoredForm
from pipeline.values.json_values import from_text, shown
from pipeline.values.key_schemas import key_schema
from pipeline.values.partitioner import partition_of
from state.log.protocol import GroupLog
from workers.commands.query_fresh import FRESH_S, PATIENT_S, Unread, waits
from workers.commands.query_place import ask_where_it_is
from workers.commands.query_windows import Range, checked_range, windows
from workers.commands.show import show_json
from workers.fleet.client import Client, client_of, description, table_of

NEWEST = Range()


def run(argv: list[str]) -> int:
    """Runs `orchestrator query`; its exit code. Raises NotThere where the key is not, OrchestratorError."""
    parser = Parser("query", "Read a key of a table.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("key", metavar="KEY", help="as typed for str keys, as JSON for others")
    when = "milliseconds since 1970, or 2026-01-31T12:00Z"
    parser.add_argument("--at", metavar="TIME", help=f"of windows: those that a time lies in ({when})")
    parser.add_argument("--from", dest="first", metavar="TIME", help="of windows: those that begin then or later")
    parser.add_argument("--until", metavar="TIME", help="of windows: those that begin before")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    return report(args, asyncio.run(_query(args)))


def report(args: argparse.Namespace, facts: dict[str, Any]) -> int:
    """Prints what `query` returned; the exit code. Raises NotThere where the key is not, OrchestratorError."""
    _show(args.json, facts)
    if facts["found"]:
        return 0
    if facts["restore_lag"]:
        raise OrchestratorError(f"{_restored(facts)}, and has no {args.key} yet; try again")
    if args.json:
        return NotThere.exit_code
    none = "no such window of key" if any((args.at, args.first, args.until)) else "no key"
    key = args.key or "'' (an empty one)"
    if facts["waiting"]:
        raise NotThere(
            f"table '{args.table}' has {none} {key} yet, and {waits(facts['waiting'])} in the inputs of "
            f"{facts['task']}; try again, or see `orchestrator status {args.app}`"
        )
    raise NotThere(f"table '{args.table}' has {none} {key}; it is read from {facts['task']}")


def _show(as_json: bool, facts: dict[str, Any]) -> None:
    """Prints the answer, and on standard error what it may lack; an object has that in its fields."""
    if as_json:
        show_json(facts)
        return
    if "windows" in facts:
        print("".join(f"{json.dumps(window)}\n" for window in facts["windows"]), end="")
    elif facts["found"]:
        print(json.dumps(facts["value"]))
    if facts["found"] and facts["restore_lag"]:
        print(f"warning: {_restored(facts)}: this may be older than what was committed", file=sys.stderr)
    if facts["found"] and facts["waiting"]:
        print(f"warning: {waits(facts['waiting'])} in the inputs of {facts['task']}, and not in this", file=sys.stderr)


def _restored(facts: dict[str, Any]) -> str:
    return f"{facts['task']} is being restored, {counted(facts['restore_lag'], 'record')} behind"


async def _query(args: Any) -> dict[str, Any]:
    async with client_of(args) as (application, log, client):
        described = await description(log, application)
        wanted = Range(*(_time(option, getattr(args, option)) for option in ("at", "first", "until")))
        return await query(client, described, args.table, args.key, log, wanted)


def _time(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else time_of_text(text)
    except ValueError as error:
        raise WrongUse(f"--{'from' if option == 'first' else option} {text}: {error}") from None


async def query(
    client: Client, described: dict[str, Any], table: str, key: str, log: GroupLog, wanted: Range = NEWEST
) -> dict[str, Any]:
    """The JSON shape of cli.md; of windows also `windows`, and the newest one's value as `value`. A table with a route of its
    own is looked for in every task. Raises WrongUse."""
    facts = table_of(described, table)
    form = StoredForm(facts)
    if not form.is_readable:
        raise WrongUse(f"'{table}' holds what a join keeps for itself ({form.kind}); query the tables that it joins")
    wanted = checked_range(form, table, wanted)
    try:
        data = from_text(facts["key_codec"], key, key_schema(facts))
    except CodecError as error:
        raise WrongUse(str(error)) from None
    number, count = facts["subtopology"], facts["partitions"]
    partitions = range(count) if facts["routed"] or facts["local"] else [partition_of(data, count)]
    unread = await Unread.now(log, described, number, partitions)
    waiting = await unread.records(FRESH_S)
    tasks = [f"{number}_{partition}" for partition in partitions]
    found, value, answer = await _looked_up(client, facts, form, tasks, (table, data), wanted)
    if waiting and not found:  # the app may just be starting
        waiting = await unread.records(PATIENT_S)
        found, value, answer = await _looked_up(client, facts, form, tasks, (table, data), wanted)
    return {
        "key": shown(facts["key_codec"], data),
        "value": value,
        "found": bool(found),
        **({"windows": found} if form.is_windowed else {}),
        "task": answer["task"],
        "instance": answer["instance"],
        "role": answer["role"],
        "epoch": answer.get("epoch"),  # an instance of an older version does not say
        "restore_lag": answer["restore_lag"],
        "waiting": waiting,
    }


async def _looked_up(
    client: Client, facts: dict[str, Any], form: StoredForm, tasks: list[str], key: tuple[str, bytes], wanted: Range
) -> tuple[list[dict[str, Any]], Any, dict[str, Any]]:
    """What the first of the tasks has that has a `key` (its table, and its bytes): the windows, or something that says that there is
    a value; the value, or that of the newest window; the instance's answer. Where none has it, the answer for a task that is
    still being restored, if there is one: the key may be on its way there."""
    table, data = key
    found: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}
    behind: dict[str, Any] = {}
    value: Any = None
    for task in tasks:
        if form.is_windowed:
            found, answer = await windows(client, form, task, table, data, wanted)
            value = found[-1]["value"] if found else None
        else:
            entry = data if form.kind == "table" else form.of_key(data)
            request = StoreRequest(task, table, entry)
            answer = await ask_where_it_is(client, request)
            raw = await _live(client, facts.get("expire_ms"), request, answer["value"])
            row = None if raw is None else form.row(entry, raw)
            found = [] if row is None else [{}]
            value = None if row is None else shown(form.value_codec, row.value)
        if found:
            return found, value, answer
        behind = behind or (answer if answer["restore_lag"] else {})
    return found, value, behind or answer


async def _live(client: Client, expire_ms: int | None, request: StoreRequest, raw: bytes | None) -> bytes | None:
    """The value's bytes: an expiring table keeps the time of the write before them, and its stream time under a key."""
    if raw is None or expire_ms is None:
        return raw
    if request.key == STREAM_TIME_KEY:
        return None
    time_kept = (await ask_where_it_is(client, msgspec.structs.replace(request, key=STREAM_TIME_KEY)))["value"]
    return expiry.live_value(raw, expire_ms, expiry.stream_time(time_kept))
