"""Diagrams of the documents, drawn from the tables that the code runs by: `python -m tests.docs.diagrams` rewrites them.

One rule: between its marks a document says what the table says, and nothing is drawn by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.group.members import MEMBER_LIFE
from orchestrator.group.phases import IN_ORDER
from orchestrator.member.machine import LIFE_CYCLE

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = (ROOT / "ARCHITECTURE.md", ROOT / "docs" / "life-cycles.md")
Table = Mapping[tuple[str | None, str], str | None]
TABLES: Mapping[str, Table] = {"LIFE_CYCLE": LIFE_CYCLE, "MEMBER_LIFE": MEMBER_LIFE, "IN_ORDER": IN_ORDER}


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
    marks = re.compile(r"(<!-- drawn from (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}{drawn(TABLES[found[2]])}\n{found[3]}", text)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(rewritten(document.read_text()))
