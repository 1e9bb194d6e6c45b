"""`orchestrator audit`: whether changelogs, stores and outputs are what Spark computes from the inputs. One rule: exit code 1
for any difference, and for whatever could not be compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import checked
from orchestrator.cli.settings import ACCESS
from orchestrator.errors import WrongUse
from orchestrator.names import counted
from orchestrator.setting import whole_number
from pipeline.loading import load
from pipeline.spark.commands import bad_given, history_given, refuse_input, say, shape_given, shown, spark_parser
from pipeline.spark.ending import run_to_its_end
from state.log.protocol import GroupLog
from workers.commands.cluster import cluster_of
from workers.commands.run import state_dir
from workers.commands.show import DIFFERENCES, show_json
from workers.connection.credentials import client_credentials
from workers.fleet.client import Client
from workers.log.logs import log_url


def run(argv: list[str]) -> int:
    """Runs `orchestrator audit`; its exit code. Raises WrongUse."""
    parser = spark_parser(
        "audit", "Compute everything again on Spark, and compare changelogs, the instances' stores and outputs with it."
    )
    parser.setting("snapshots", help="folder of the snapshot of a backfill with --snapshot-only")
    parser.settings("state-dir", *ACCESS)
    parser.add_argument(
        "--limit",
        type=checked(whole_number),
        default=DIFFERENCES,
        metavar="N",
        help=f"how many differences of a check are shown, {DIFFERENCES} by default",
    )
    parser.add_argument("--out", metavar="FILE", help="all differences, as Parquet (FILE.parquet)")
    parser.add_argument("--no-stores", action="store_true", help="leave out the stores of the instances")
    args = parser.parse_intermixed_args(argv)
    from pipeline.spark.verifying import Stores, Wanted
    from pipeline.spark.verifying import audit as run_audit

    app = load(args.app)
    history = history_given(args, app)
    shape, out = shape_given(args, history), _out(args.out)
    if out is not None:
        refuse_input("--out", out, history)
    url = log_url(args, app.id, existing=True)

    def client(log: GroupLog) -> Client:
        return Client(log, app.id, lambda: client_credentials(app.id, url, args), url)

    stores = None if args.no_stores else Stores(client, Path(state_dir(args, url)) / app.id)
    snapshots = Path(args.snapshots) if args.snapshots else None
    wanted = Wanted(
        snapshots,
        history,
        shape,
        args.allow_outside,
        args.task_memory,
        stores,
        args.limit,
        out,
        bad_given(args, history),
    )
    facts = run_to_its_end(run_audit(args.app, url, wanted, cluster=cluster_of(args), say=say))
    if args.json:
        show_json(facts)
    else:
        print("\n".join(_lines(facts, args.out)))
    return 0 if all(check["ok"] for check in facts["checks"]) else 1


def _out(given: str | None) -> Path | None:
    """Raises WrongUse."""
    if given is None:
        return None
    path = Path(given)
    if path.suffix != ".parquet":
        raise WrongUse(f"--out {given}: differences are written as Parquet; let the name end with .parquet")
    if path.is_dir():
        raise WrongUse(f"--out {given}: it is a folder; name a file that is written, or replaced")
    if not path.parent.is_dir():
        raise WrongUse(f"--out {given}: there is no folder {path.parent}; make it first")
    return path


def _lines(facts: dict[str, Any], out: str | None) -> Iterator[str]:
    """What a person reads."""
    from pipeline.spark.shown_differences import line

    yield shown(facts["checks"])
    for check in facts["checks"]:
        if check.get("differences"):
            yield f"{check['check']}: {counted(check['differ'], 'difference')}"
            yield from map(line, check["differences"])
            if check["differ"] > len(check["differences"]):
                yield f"  and {check['differ'] - len(check['differences'])} more; --limit shows more, --out writes all"
    places = ", ".join(f"{place} {at}" for place, at in facts["positions"].items())
    yield f"compared up to {places}"
    if facts["unread"]:
        yield f"{counted(facts['unread'], 'offset')} behind that, not processed yet"
    if "written" in facts:
        yield f"{counted(facts['written'], 'difference')} in {out}"
