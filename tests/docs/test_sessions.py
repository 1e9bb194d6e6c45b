"""What the pages show of a console is what a console shows: sessions with real processes, from an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.docs.sessions import Shell, by_kind, fits
from tests.docs.snippets import PAGES, ROOT, Command, blocks, commands

RUN = "run"
SESSIONS = [page for page in PAGES if any(block.note == RUN for block in blocks(page))]


@pytest.mark.processes
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: str(page.relative_to(ROOT).with_suffix("")))
def test_a_session_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    for block in blocks(page):
        if block.name is not None and block.language != "console":
            console.write(block.name, block.text.partition("\n")[2] if block.language == "csv" else block.text)
    shell = Shell(console.folder)
    try:
        for block in blocks(page):
            if block.note == RUN:
                for command in commands(block):
                    shell.play(command)
    finally:
        shell.close()
        console.close()


def test_there_are_sessions() -> None:
    assert {page.name for page in SESSIONS} >= {"tutorial.md", "first-day.md"}


def test_what_varies_is_compared_by_its_kind() -> None:
    assert by_kind("started, process 7243") == by_kind("started,  process 99")
    assert by_kind("pause 25 ms") == by_kind("pause 1,025.5 ms") != by_kind("pause 25 s")
    assert by_kind("0_1 i1 -> i2") != by_kind("0_1 i1 -> i3")
    assert fits(["a", "...", "b"], ["a", "x", "y", "b"]) and fits(["..."], [])
    assert not fits(["a"], ["a", "b"]) and not fits(["a", "...", "b"], ["a", "b", "c"]) and not fits(["a"], [])


def test_a_session_that_prints_something_else_is_seen(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    shell = Shell(tmp_path / "place")
    try:
        shell.play(Command("here", "echo 5; true", ("5",)))
        shell.play(Command("here", "echo wrong >&2; false", ("wrong",)))
        with pytest.raises(AssertionError, match="printed\n6"):
            shell.play(Command("here", "echo 6", ("5",)))
    finally:
        shell.close()
