"""The diagrams of the documents are what the tables say."""

from __future__ import annotations

from tests.docs.diagrams import DOCUMENTS, TABLES, drawn, rewritten


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert list(map(rewritten, texts)) == texts, "run `python -m tests.docs.diagrams`"
    for name, table in TABLES.items():
        drawing = f"<!-- drawn from {name} -->\n{drawn(table)}\n<!-- end -->"
        assert any(drawing in text for text in texts), f"{name} is drawn nowhere"


def test_a_changed_table_changes_the_text() -> None:
    assert drawn({(None, "born"): "here", ("here", "left"): None, ("here", "lost"): None}).splitlines()[2:-1] == [
        "    [*] --> here: born",
        "    here --> [*]: left / lost",
    ]
