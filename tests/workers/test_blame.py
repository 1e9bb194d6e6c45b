"""Whose note of a call a parent reads."""

from __future__ import annotations

from pathlib import Path

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
