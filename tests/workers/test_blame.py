"""Whose note of a call a parent reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from state.errors import DirectoryUnusable
from workers.calls.blame import Blame, CallNote, note_path, remove_notes

LASTED = Blame("0_1", "payments", 1, 7, ("settle",), "lasted longer than --max-call of 5 s")


def test_the_note_of_a_process_without_a_parent_is_not_read_as_its_successors(tmp_path: Path) -> None:
    CallNote(note_path(tmp_path, "before")).write(LASTED)
    assert CallNote(note_path(tmp_path, "after")).read(-9) is None
    assert CallNote(note_path(tmp_path, "before")).read(89) == LASTED


def test_an_instance_that_starts_removes_such_notes_and_nothing_else(tmp_path: Path) -> None:
    CallNote(note_path(tmp_path, "before")).write(LASTED)
    (tmp_path / "journal.jsonl").touch()
    remove_notes(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    note = CallNote(note_path(tmp_path / "state" / "i1", "one"))
    note.write(LASTED)
    assert note.read(89) == LASTED
    assert (tmp_path / "state" / "i1").stat().st_mode & 0o077 == 0


def test_a_note_that_cannot_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(DirectoryUnusable, match=r"call-one\.json cannot be written"):
        CallNote(note_path(tmp_path / "state", "one")).write(LASTED)
