"""The diagrams of the documents are what the tables say."""

from __future__ import annotations

from tests.docs.diagrams import DOCUMENT, TABLES, drawn, rewritten


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    text = DOCUMENT.read_text()
    assert rewritten(text) == text, "run `python -m tests.docs.diagrams`"
    for name, table in TABLES.items():
        assert f"<!-- drawn from {name} -->\n{drawn(table)}\n<!-- end -->" in text


def test_a_changed_table_changes_the_text() -> None:
    assert drawn({(None, "born"): "here", ("here", "left"): None, ("here", "lost"): None}).splitlines()[2:-1] == [
        "    [*] --> here: born",
        "    here --> [*]: left / lost",
    ]
