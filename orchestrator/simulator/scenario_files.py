"""Scenario files as text: blocks of a command, `----`, and the expected output; and the table of commands.

One rule: a file is split here and understood in scenario.py. A file without `----` is a what-if: each line is a command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

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
    "depose coordinator": "_depose",
    "grow": "_grow",
    "tick": "_tick",
    "explain": "_explain",
}
RULE = "----"


@dataclass(frozen=True, slots=True)
class Block:
    """One command of a file: its lines, where it stands, and the expected output (None in a what-if file)."""

    line: int
    command: str
    body: tuple[str, ...] = ()
    expected: str | None = None


def parse(text: str) -> list[Block]:
    """Split a file into blocks. Raises WrongUse naming the line."""
    lines = list(_uncommented(text))
    separated = any(line.strip() == RULE for _, line in lines)
    return list(_parse_blocks(lines) if separated else _parse_plain(lines))


def _uncommented(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments. A line that is nothing but a comment is left out: it is no blank line."""
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        kept = line.split("#", 1)[0].rstrip()
        if kept or not line.strip():
            yield number, kept


def _parse_blocks(lines: list[tuple[int, str]]) -> Iterator[Block]:
    """Blocks as a blank line separates them: a command, `----`, the expected output."""
    for blank, found in groupby(lines, key=lambda line: not line[1]):
        if blank:
            continue
        block = list(found)
        start = block[0][0]
        texts = [text for _, text in block]
        rules = [at for at, text in enumerate(texts) if text.strip() == RULE]
        if not rules:
            raise WrongUse(f"line {start}: '{texts[0].strip()}' has no '----' below it; add it and the expected output")
        if len(rules) > 1:
            raise WrongUse(f"line {block[rules[1]][0]}: a second '----' in a block; a blank line ends the block before")
        if rules[0] == 0:
            raise WrongUse(f"line {start}: no command above '----'; write one")
        command, *body = (text.strip() for text in texts[: rules[0]])
        yield Block(start, command, tuple(body), "\n".join(texts[rules[0] + 1 :]))


def _parse_plain(lines: list[tuple[int, str]]) -> Iterator[Block]:
    """A what-if: each line is a command; the lines of a group go on up to a blank line or the next command."""
    verbs = {command.split()[0] for command in COMMANDS}
    index = 0
    while index < len(lines):
        start, command = lines[index]
        index += 1
        if not command:
            continue
        body: list[str] = []
        if command.split()[0] == "group":
            while index < len(lines) and lines[index][1] and lines[index][1].split()[0] not in verbs:
                body.append(lines[index][1].strip())
                index += 1
        yield Block(start, command.strip(), tuple(body))
