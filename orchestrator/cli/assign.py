"""`orchestrator assign`: what an assignor makes of a group that is written down. One rule: it changes nothing.

Reads the text or JSON form of `orchestrator.partition_assignors.description`, assigns, and prints who gets what, what moved and
how even it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.cli.arguments import Describable
from orchestrator.names import counted
from orchestrator.partition_assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    AssignorError,
    CooperativeStickyAssignor,
    StickyAssignor,
    Subscription,
    TopicPartition,
    balance_score,
)
from orchestrator.partition_assignors.description import Description, read_description

DONE, WRONG_USE = 0, 2

FORMS = """\
FILE, one thing a line, # starts a comment:
  topic t0 2
  member C0 topics t0 t1 owned t0-0 t1-1 generation 5 instance i0 rack a
  replicas t0-0 a b
or one JSON object:
  {"topics": {"t0": 2}, "replicas": {"t0-0": ["a", "b"]},
   "members": {"C0": {"topics": ["t0"], "owned": ["t0-0"], "generation": 5, "instance_id": "i0", "rack": "a"}}}
topics: how many partitions; owned: what a member held, generation: in which assignment; replicas: racks of a partition.
"""


class _WrongUse(Exception):
    """Shown as one line; exit code 2."""


class _Parser(Describable):
    def error(self, message: str) -> NoReturn:
        raise _WrongUse(f"{message}; orchestrator assign; see orchestrator assign --help")


def run(argv: list[str]) -> int:
    """The command; returns its exit code."""
    try:
        options = _options(argv)
        text, source = _read(options.file)
        description = read_description(text, source)
        assignor = _assignor(options.assignor, options.prefer)
        assignment = assignor.assign(description.topics, description.members, description.replicas or None)
    except (_WrongUse, AssignorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_USE
    answer = _answer(assignor.name, description, assignment)
    print(json.dumps(answer, indent=2) if options.json else _table(answer))
    return DONE


def _options(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="orchestrator assign",
        description="Print what a partition assignor makes of a group described in FILE. Changes nothing.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="the description; - reads standard input")
    parser.add_argument("--assignor", default="sticky", choices=list(ASSIGNORS), help="the rule (default: sticky)")
    parser.add_argument(
        "--prefer",
        choices=("balance", "stickiness", "fair"),
        help="for sticky and cooperative-sticky: evenness first (default), nothing owned moves, or from nothing",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


def _read(file: str) -> tuple[str, str]:
    source = "standard input" if file == "-" else file
    try:
        return (_standard_input() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig"), source
    except OSError as error:
        raise _WrongUse(
            f"cannot read the description: {error.strerror}; {source}; name a readable file or -"
        ) from error
    except UnicodeDecodeError as error:
        raise _WrongUse(f"the description is not UTF-8 text: {error.reason}; {source}; save it as UTF-8") from error


def _standard_input() -> bytes:
    """As it came; where a program has put a text in its place, that."""
    buffer = getattr(sys.stdin, "buffer", None)
    found: bytes = sys.stdin.read().encode() if buffer is None else buffer.read()
    return found


def _assignor(name: str, prefer: Any) -> Assignor:
    if prefer is None:
        return ASSIGNORS[name]
    if name == StickyAssignor.name:
        return StickyAssignor(prefer=prefer)
    if name == CooperativeStickyAssignor.name:
        return CooperativeStickyAssignor(prefer=prefer)
    raise _WrongUse(f"--prefer does not apply to {name}; orchestrator assign; use it with sticky or cooperative-sticky")


def _answer(name: str, description: Description, assignment: Assignment) -> dict[str, Any]:
    """The JSON answer. Moves are counted from what members said they owned, as far as it still exists."""
    members = description.members
    now = {partition: member for member, partitions in assignment.items() for partition in partitions}
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    everything = [
        TopicPartition(topic, partition)
        for topic, count in sorted(description.topics.items())
        if topic in wanted
        for partition in range(count)
    ]
    exists = set(everything)
    moves = [
        {"partition": str(partition), "from": member, "to": now.get(partition)}
        for member, subscription in sorted(members.items())
        for partition in sorted(exists.intersection(subscription.owned))
        if now.get(partition) != member
    ]
    loads = [len(partitions) for partitions in assignment.values()]
    return {
        "schema": 1,
        "assignor": name,
        "members": {
            member: {
                "partitions": list(map(str, partitions)),
                "count": len(partitions),
                "kept": len(exists.intersection(partitions, members[member].owned)),
                "beside_rack": _beside(partitions, members[member], description.replicas),
            }
            for member, partitions in sorted(assignment.items())
        },
        "partitions": len(everything),
        "withheld": [str(partition) for partition in everything if partition not in now],
        "moves": moves,
        "fewest": min(loads, default=0),
        "most": max(loads, default=0),
        "balance_score": balance_score(assignment),
    }


def _beside(
    partitions: Sequence[TopicPartition], member: Subscription, replicas: Mapping[TopicPartition, tuple[str, ...]]
) -> int | None:
    """How many have a replica in the member's rack; unknown where no rack is given."""
    if member.rack is None or not replicas:
        return None
    return sum(member.rack in replicas.get(partition, ()) for partition in partitions)


def _table(answer: dict[str, Any]) -> str:
    """The same for a person."""
    rows = [("member", "count", "kept", "partitions")]
    rows += [
        (member, str(entry["count"]), str(entry["kept"]), " ".join(entry["partitions"]) or "-")
        for member, entry in answer["members"].items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows]
    lines.append("")
    lines += [
        f"moved    {move['partition']}: {move['from']} -> {move['to'] or 'nobody yet'}" for move in answer["moves"]
    ]
    if answer["withheld"]:
        lines.append(f"withheld {' '.join(answer['withheld'])}: handed over by the next rebalance, when given up")
    beside = [entry["beside_rack"] for entry in answer["members"].values() if entry["beside_rack"] is not None]
    if beside:
        lines.append(f"racks    {counted(sum(beside), 'partition')} beside a replica")
    lines.append(
        f"{answer['assignor']}: {counted(answer['partitions'], 'partition')}, {counted(len(answer['members']), 'member')}, "
        f"{counted(len(answer['moves']), 'move')}, {answer['fewest']} to {answer['most']} each, "
        f"balance score {answer['balance_score']}"
    )
    return "\n".join(lines)
