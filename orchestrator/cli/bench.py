"""`orchestrator bench rebalance`: one workload under every protocol, and what each costs.

One rule: the figures are those of a model in virtual time (rehearsal.py), the same on every machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from orchestrator.cli.arguments import Parser
from orchestrator.errors import WrongUse
from orchestrator.model import Protocol, Settings
from orchestrator.names import counted
from orchestrator.simulator.benchmark.history import Measures
from orchestrator.simulator.benchmark.rehearsal import Rehearsal
from orchestrator.simulator.benchmark.timeline import Panel, draw
from orchestrator.simulator.benchmark.workload import DEFAULT, Workload, parse_workload

PROTOCOLS = {
    "eager": Settings(protocol=Protocol.EAGER),
    "cooperative": Settings(protocol=Protocol.COOPERATIVE),
    "learner-eager": Settings(protocol=Protocol.LEARNER, ready="eager"),
    "learner-conservative": Settings(protocol=Protocol.LEARNER, ready="conservative"),
}
COPIES = ("none", "standbys", "snapshots", "both")


class Run(NamedTuple):
    """One protocol with one choice of copies."""

    protocol: str
    copies: str
    measures: Measures
    panel: Panel


def run(argv: list[str]) -> int:
    """Exit code 0; 1 where a group did not come to rest; 2 for a workload that cannot be read. Raises WrongUse."""
    if argv[:1] != ["rebalance"] and argv[:1] not in (["-h"], ["--help"]):
        what = f"'{argv[0]}' cannot be measured" if argv else "name what to measure"
        raise WrongUse(f"orchestrator bench: {what}; write orchestrator bench rebalance")
    parser = Parser("bench rebalance", "One workload under every protocol, in virtual time on the real cores.")
    parser.add_argument("--workload", metavar="FILE", help="tasks, instances and changes; - for standard input")
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS, help="only this one; may be repeated")
    parser.add_argument("--copies", action="append", choices=COPIES, help="only with these; may be repeated")
    parser.add_argument("--svg", metavar="FILE", help="draw a timeline of tasks by instance, a panel per protocol")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args(argv[1:] if argv[:1] == ["rebalance"] else argv)
    text = DEFAULT if args.workload is None else _read(args.workload)
    workload = parse_workload(text)
    if args.svg and (Path(args.svg).is_dir() or not Path(args.svg).absolute().parent.is_dir()):
        raise WrongUse(f"--svg {args.svg}: a file cannot be written there; name one in a folder that is there")
    runs: list[Run] = []
    for one in rehearse(workload, args.protocol or list(PROTOCOLS), args.copies or list(COPIES)):
        if not args.json:
            if not runs:
                print(heading(workload))
            print(row(one), flush=True)
        runs.append(one)
    if args.json:
        print(json.dumps({"schema": 1, "workload": text.splitlines(), "runs": [facts(one) for one in runs]}))
    if args.svg:
        _write(args.svg, picture(workload, runs))
    return 0


def rehearse(workload: Workload, protocols: list[str], copies: list[str]) -> Iterator[Run]:
    """Every protocol with every choice of copies."""
    for choice in copies:
        for name in protocols:
            settings = replace(PROTOCOLS[name], standbys=int(choice in ("standbys", "both")))
            rehearsal = Rehearsal(workload, settings, snapshots=choice in ("snapshots", "both"))
            measures = rehearsal.run()
            title = f"{name}, {_copies(choice)}"
            panel = Panel(title, rehearsal.history.spans, rehearsal.begin_ms, rehearsal.now_ms)
            yield Run(name, choice, measures, panel)


def _copies(choice: str) -> str:
    return {"none": "no copies", "standbys": "1 standby", "snapshots": "snapshots", "both": "1 standby and snapshots"}[
        choice
    ]


def facts(one: Run) -> dict[str, object]:
    """One run as JSON."""
    m = one.measures
    return {
        "protocol": one.protocol,
        "copies": one.copies,
        "without_processing_s": m.silent_ms / 1000,
        "worst_task_s": m.worst_task_ms / 1000,
        "delayed_records": m.delayed_records,
        "rebalances": m.rebalances,
        "moves": m.moves,
        "cold_hand_overs": m.cold,
        "restored_bytes": m.restored_bytes,
        "balanced_s": [ms / 1000 for ms in m.balanced_ms],
        "double_work_s": m.double_work_ms / 1000,
    }


COLUMNS = (
    ("protocol", 20),
    ("copies", 23),
    ("silent s", 9),
    ("worst s", 8),
    ("delayed", 9),
    ("rebal.", 6),
    ("moves", 5),
    ("cold", 4),
    ("restored", 9),
    ("balanced after s", 24),
    ("double s", 8),
)


def heading(workload: Workload) -> str:
    """What the columns mean, and their names."""
    stateful = sum(1 for t in workload.tasks if t.state_bytes)
    total = sum(t.state_bytes for t in workload.tasks) / (1 << 30)
    changes = "; ".join(f"{c.at_ms / 1000:g} s {c}" for c in workload.changes) or "none"
    return (
        f"{counted(len(workload.tasks), 'task')} ({stateful} with {total:.1f} GiB of state), {counted(workload.instances, 'instance')}; "
        f"changes: {changes}\n"
        "silent: seconds in which nobody ran a task, over all tasks; worst: of one task; delayed: records that came in\n"
        "then; cold: hand-overs to an instance that was not caught up while another was; double: seconds of learners\n\n"
        + _line([name for name, _ in COLUMNS])
    )


def row(one: Run) -> str:
    """One line of the table."""
    m = one.measures
    return _line(
        [
            one.protocol,
            _copies(one.copies),
            f"{m.silent_ms / 1000:.1f}",
            f"{m.worst_task_ms / 1000:.1f}",
            f"{m.delayed_records:,}",
            str(m.rebalances),
            str(m.moves),
            str(m.cold),
            f"{m.restored_bytes / (1 << 30):.1f} GiB",
            " ".join(f"{ms / 1000:.1f}" for ms in m.balanced_ms),
            f"{m.double_work_ms / 1000:.1f}",
        ]
    )


def _line(cells: list[str]) -> str:
    texts = (c.ljust(w) if i < 2 else c.rjust(w) for i, (c, (_, w)) in enumerate(zip(cells, COLUMNS, strict=True)))
    return "  ".join(texts).rstrip()


def picture(workload: Workload, runs: list[Run]) -> str:
    """Panels of the runs with the first choice of copies: one row per protocol."""
    first = runs[0].copies
    panels = [one.panel for one in runs if one.copies == first]
    return draw(panels, [load.id for load in workload.tasks], workload.changes)


def _read(name: str) -> str:
    try:
        return sys.stdin.read().removeprefix("\ufeff") if name == "-" else Path(name).read_text("utf-8-sig")
    except OSError as error:
        raise WrongUse(f"cannot read {name}: {error.strerror}; name a workload file") from None
    except UnicodeDecodeError:
        raise WrongUse(f"{name} is not a text file; name a workload file") from None


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text)
    except OSError as error:
        raise WrongUse(f"cannot write {name}: {error.strerror}; choose another path for --svg") from None
