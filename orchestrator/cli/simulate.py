"""`orchestrator simulate FILE`: an operator's what-if. One rule: it runs the real core, and nothing outside of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.cli.arguments import Parser
from orchestrator.errors import WrongUse
from orchestrator.simulator.scenario import Outcome, Scenario, parse


def run(argv: list[str]) -> int:
    """Exit code 0, or 1 where a command was refused or an expectation in the file does not hold."""
    parser = Parser("simulate", "Play a scenario file: commands, and what the group looks like after each.")
    parser.add_argument("file", metavar="FILE", help="a scenario file, or - for standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object a line and command")
    args = parser.parse_args(argv)
    text = _read(args.file)
    scenario = Scenario()
    failed = False
    for block in parse(text):
        outcome = scenario.run(block)
        if args.json:
            print(json.dumps(facts(outcome)), flush=True)
        else:
            print(f"> {block.command}\n{outcome.text}\n")
        if block.expected is None:
            failed = failed or outcome.error is not None
        elif outcome.text != block.expected.strip("\n"):
            failed = True
            print(f"line {block.line}: '{block.command}' gave another result than the file expects", file=sys.stderr)
    return 1 if failed else 0


def facts(outcome: Outcome) -> dict[str, object]:
    """The JSON shape of cli.md."""
    return {
        "command": outcome.command,
        "generation": outcome.generation,
        "leader": outcome.leader,
        "members": outcome.members,
        "events": outcome.events,
        "error": outcome.error,
    }


def _read(name: str) -> str:
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode()
    except OSError as error:
        raise WrongUse(f"cannot read {name}: {error.strerror}; name a scenario file") from None
    except UnicodeDecodeError:
        shown = "standard input" if name == "-" else name
        raise WrongUse(f"{shown} is not a text file; name a scenario file") from None
