"""Diagrams of the documents, drawn from the tables that the code runs by: `python -m tests.docs.diagrams` rewrites them.

One rule: between its marks a document says what the table says, and nothing is drawn by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.member import LIFE_CYCLE
from orchestrator.roster import MEMBER_LIFE

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "ARCHITECTURE.md"
Table = Mapping[tuple[str | None, str], str | None]
TABLES: dict[str, Table] = {"LIFE_CYCLE": LIFE_CYCLE, "MEMBER_LIFE": MEMBER_LIFE}


def drawn(table: Table) -> str:
    """A state diagram; what leads from one state to the same other is one arrow."""
    arrows: dict[tuple[str | None, str | None], list[str]] = {}
    for (before, what), after in table.items():
        arrows.setdefault((before, after), []).append(what)
    lines = [
        f"    {before or '[*]'} --> {after or '[*]'}: {' / '.join(what)}" for (before, after), what in arrows.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def rewritten(text: str) -> str:
    """The document with its diagrams drawn anew. Raises KeyError for marks of a table that is not there."""
    marks = re.compile(r"(<!-- drawn from (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return marks.sub(lambda found: found[1] + drawn(TABLES[found[2]]) + found[3], text)


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
