"""What the pages name is there: files, decisions, links; and a page is a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parent.parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = (ARCHITECTURE, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
ROOMS = "orchestrator|workers|state|pipeline|examples|tests|docs"
LINES_OF_A_PAGE = 150
LINES_OF_A_DECISION = 15


def missing(page: Path) -> list[str]:
    """Files of the tree that a page names and that are not there; links that lead nowhere."""
    text = page.read_text()
    named = re.findall(rf"`((?:{ROOMS})/[\w./-]*)`", text)
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    return [name for name in named if not (ROOT / name).exists()] + [
        name for name in linked if not (page.parent / name).exists()
    ]


def test_the_architecture_is_one_page_and_names_files_that_are_there() -> None:
    assert ARCHITECTURE.read_text().count("\n") <= LINES_OF_A_PAGE
    assert missing(ARCHITECTURE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert missing(page) == []


def test_every_room_is_in_the_table() -> None:
    table = ARCHITECTURE.read_text()
    rooms = [path for path in (ROOT / "orchestrator").iterdir() if (path / "__init__.py").exists()]
    assert [room.name for room in rooms if f"| `orchestrator/{room.name}/` |" not in table] == []


def test_decisions_are_numbered_and_have_three_parts() -> None:
    numbers = {page: int(page.name.partition("-")[0]) for page in DECISIONS}
    assert sorted(numbers.values()) == list(range(1, len(DECISIONS) + 1))
    for page in DECISIONS:
        title, *parts = page.read_text().split("\n\n")
        assert title.startswith(f"# {numbers[page]}. "), page.name
        heads = [part.split(" ", 1)[0] for part in parts]
        assert heads == ["**Context.**", "**Decision.**", "**Consequence.**"], page.name
        assert page.read_text().count("\n") <= LINES_OF_A_DECISION, page.name


def test_every_page_has_a_place_in_the_site() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if ROOT / "docs" in page.parents} - {
        f"decisions/{page.name}" for page in DECISIONS
    }
    named = set(re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert pages - named == set() and len(pages) > 40


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/api.md").read_text()
    assert [name for name in orchestrator.__all__ if f"::: orchestrator.{name}\n" not in text] == []
