"""What the pages show as code: fenced blocks by language, programs by their names, commands by their words.

One rule: a page is read as it stands; what runs is what its reader copies. Used by tests/docs/test_snippets.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = (
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
)
FENCE = re.compile(
    r"^(?P<mark><!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """A fenced block: where it begins, and the note in the comment above it."""

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def name(self) -> str | None:
        """The file that its first line names: `# bank.py`."""
        found = re.match(r"# (\S+\.\w+)\n", self.text)
        return found[1] if found else None


class Command(NamedTuple):
    """A line behind `$`, and the lines that it prints."""

    where: str
    text: str
    output: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["note"] or "")
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """Commands of a console block, lines that a backslash continues joined."""
    lines = block.text.splitlines()
    index = 0
    while index < len(lines):
        line, index = lines[index], index + 1
        if not line.startswith("$ "):
            continue
        text = line[2:]
        while text.endswith("\\") and index < len(lines):
            text, index = text[:-1] + lines[index].strip(), index + 1
        output: list[str] = []
        while index < len(lines) and not lines[index].startswith("$ "):
            output.append(lines[index])
            index += 1
        yield Command(block.where, text, tuple(output))
