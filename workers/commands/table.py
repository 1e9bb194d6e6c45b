"""`orchestrator table scan | dump APP TABLE`: the pairs of a table, from the running group or from this machine's disk.

One rule: reading changes nothing; where a group runs it is asked, so that what is shown is what was committed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.coordinator.handshake import NotTrusted
from orchestrator.coordinator.requests import StableRequest
from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.names import counted
from orchestrator.setting import whole_number
from pipeline.errors import CodecError
from pipeline.time.stored_form import StoredForm, StoredRow
from pipeline.values.json_values import from_text
from pipeline.values.key_schemas import key_schema
from state.log.protocol import GroupLog
from workers.commands.query_fresh import FRESH_S, Unread, waits
from workers.commands.run import state_dir
from workers.commands.table_file import target
from workers.commands.table_pairs import Wanted, of_disk, of_group
from workers.fleet.client import Client, client_of, description, table_of
from workers.fleet.presence import is_looked_after

SCANNED = 100  # pairs that `scan` shows where --limit does not say


def run(argv: list[str]) -> int:
    """Runs `orchestrator table`; its exit code. Raises WrongUse, OrchestratorError."""
    parser = Parser("table", "Show or write the pairs of a table.")
    parser.add_argument("verb", choices=["scan", "dump"], metavar="scan|dump", help=f"show {SCANNED}, or write all")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("--prefix", help="only keys that begin with this text (str and bytes keys)")
    parser.add_argument("--from", dest="first", metavar="KEY", help="from this key on, in the order of their bytes")
    parser.add_argument("--until", dest="last", metavar="KEY", help="to the one before this key")
    parser.add_argument("--limit", type=checked(whole_number), help=f"at most so many pairs; of scan {SCANNED}")
    parser.add_argument("--out", metavar="FILE", help="a file of that name, by its end JSON lines or Parquet")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_intermixed_args(argv)
    if args.limit is None and args.verb == "scan" and args.out is None:
        args.limit, is_cut = SCANNED, True
    else:
        is_cut = False
    count, more = asyncio.run(_run(args))
    if args.out is not None:
        print(f"{counted(count, 'pair')} in {args.out}")
    elif is_cut and more:
        print(f"the first {count}; --limit shows others, `table dump` all of them", file=sys.stderr)
    return 0


async def _run(args: Any) -> tuple[int, bool]:
    """How many pairs were written, and whether there are others."""
    async with client_of(args) as (application, log, client):
        described = await description(log, application)
        facts = table_of(described, args.table)
        form = StoredForm(facts)
        if not form.is_readable:
            raise WrongUse(
                f"'{args.table}' holds what a join keeps for itself ({form.kind}); scan the tables that it joins"
            )
        wanted = _wanted(args, facts)
        count = 0
        codecs = facts["key_codec"], form.value_codec
        with target(args.out, *codecs, has_bounds=form.is_windowed) as into:
            async for row in await _rows(args, log, client, described, wanted):
                if count == args.limit:
                    return count, True
                into.add(row)
                count += 1
        return count, False


async def _rows(
    args: Any, log: GroupLog, client: Client, described: dict[str, Any], wanted: Wanted
) -> AsyncIterator[StoredRow]:
    """From the group; from disk where none runs. Raises RefusedBySafety where there is neither."""
    facts = described["tables"][args.table]
    try:
        await client.ask(StableRequest())
    except NotTrusted:
        raise
    except RefusedBySafety as error:
        if await is_looked_after(log, described["id"]):
            raise  # an instance has the stores open, and the group has no coordinator at the moment
        print(f"warning: {error}; the table is read from this machine's disk", file=sys.stderr)
    else:
        unread = await Unread.now(log, described, facts["subtopology"], range(facts["partitions"]))
        if waiting := await unread.records(FRESH_S):
            print(f"warning: {waits(waiting)} in the inputs, and not in what follows", file=sys.stderr)
        return of_group(client, wanted)
    state = Path(state_dir(args, client.log_url)) / described["id"]

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    rows: AsyncIterator[StoredRow] = await of_disk(log, state, facts, wanted, warn)
    return rows


def _wanted(args: Any, facts: dict[str, Any]) -> Wanted:
    """Raises WrongUse for keys that are none, or bounds that exclude each other."""
    codec, start, stop = facts["key_codec"], b"", None
    if args.prefix is not None:
        if args.first is not None or args.last is not None:
            raise WrongUse("--prefix and --from or --until exclude each other; give one of them")
        if codec not in ("str", "bytes"):
            raise WrongUse(f"--prefix is for text; keys of '{args.table}' are {codec}: use --from and --until")
        start = args.prefix.encode()
        stop = _after(start)
    try:
        schema = key_schema(facts)
        start = start if args.first is None else from_text(codec, args.first, schema)
        stop = stop if args.last is None else from_text(codec, args.last, schema)
    except CodecError as error:
        raise WrongUse(str(error)) from None
    if stop is not None and start >= stop:
        raise WrongUse("--until is not after --from in the order of their bytes; nothing lies between them")
    tasks = tuple(f"{facts['subtopology']}_{number}" for number in range(facts["partitions"]))
    return Wanted(tasks, args.table, start, stop, facts.get("expire_ms"), StoredForm(facts))


def _after(prefix: bytes) -> bytes | None:
    """The least key that is greater than all with this prefix; None where there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
