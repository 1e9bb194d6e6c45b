"""Scenario files as text: blocks of a command, `----`, and the expected output; and the table of commands.

One rule: a file is split here and understood in scenario.py. A file without `----` is a what-if: each line is a command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import WrongUse

# The verb, and what runs it in scenario.py.
COMMANDS = {
    "group": "_group",
    "config": "_config",
    "join": "_join",
    "ready": "_ready",
    "weight": "_weight",
    "leaving": "_leaving",
    "scale-down": "_scale_down",
    "crash": "_crash",
    "stall": "_stall",
    "resume": "_resume",
    "rejoin": "_rejoin",
    "restart coordinator": "_restart",
    "tick": "_tick",
    "explain": "_explain",
}


@dataclass(frozen=True, slots=True)
class Block:
    """One command of a file: its lines, where it stands, and the expected output (None in a what-if file)."""

    line: int
    command: str
    body: tuple[str, ...] = ()
    expected: str | None = None


def parse(text: str) -> list[Block]:
    """Split a file into blocks. Raises WrongUse naming the line."""
    lines = text.splitlines()
    if not any(line.strip() == "----" for line in lines):
        return list(_parse_plain(lines))
    blocks: list[Block] = []
    index = 0
    while index < len(lines):
        line = lines[index].strip()
        if not line or line.startswith("#"):
            index += 1
            continue
        start, head = index, []
        while index < len(lines) and lines[index].strip() not in ("", "----"):
            head.append(_uncomment(lines[index]))
            index += 1
        if index >= len(lines) or lines[index].strip() != "----":
            raise WrongUse(f"line {start + 1}: '{head[0]}' has no '----' below it; add it and the expected output")
        index += 1
        expected: list[str] = []
        while index < len(lines) and lines[index].strip():
            expected.append(lines[index].rstrip())
            index += 1
        head = [h for h in head if h]
        blocks.append(Block(start + 1, head[0], tuple(head[1:]), "\n".join(expected)))
    return blocks


def _uncomment(line: str) -> str:
    return line.split("#", 1)[0].strip()


def _parse_plain(lines: list[str]) -> Iterator[Block]:
    index = 0
    while index < len(lines):
        command = _uncomment(lines[index])
        index += 1
        if not command:
            continue
        start, body = index, []
        if command.split()[0] == "group":
            while index < len(lines) and (line := _uncomment(lines[index])):
                if line.split()[0] in COMMANDS:
                    break
                body.append(line)
                index += 1
        yield Block(start, command, tuple(body))
