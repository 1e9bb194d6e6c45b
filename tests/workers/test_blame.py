"""Whose note of a call a parent reads."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import App, ProcessorFailed
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from tests.state.permissions import as_any_user
from workers.calls.blame import Blame, CallNote, Caution, Refusal, note_path, remove_notes

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


def test_a_note_that_cannot_be_written_ends_no_worker_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk that ended the worker, and with it a fleet whose tasks all had their state."""
    note = CallNote(note_path(tmp_path, "one"))
    tmp_path.chmod(0o500)
    with as_any_user():
        for _ in range(3):
            note.write(LASTED)
            assert note.read(89) is None
            note.clear()
            remove_notes(tmp_path)
    tmp_path.chmod(0o700)
    [line] = caplog.messages
    assert "call-one.json cannot be written (Permission denied)" in line


def test_half_a_note_is_of_no_call(tmp_path: Path) -> None:
    """A disk that is full takes the name of a file, and none of its bytes."""
    path = note_path(tmp_path, "one")
    path.symlink_to("/dev/full")
    CallNote(path).write(LASTED)
    assert CallNote(path).read(89) is None and not path.is_symlink()


def task_with_timers(gone: Callable[[str], Any], beaten: Callable[[str], Any]) -> TaskProcess:
    """A task that calls `gone` with the key of what is due, and `beaten` with the key of a record."""
    app = App("alarm", partitions=1)
    beats, dead = app.topic("beats", key=str, value=int), app.topic("dead", key=str, value=int)
    silent = app.timers("silent", key=str)

    @app.processor(beats, silent)
    def beat(beat: Any, silent: Any) -> None:
        beaten(beat.key)
        silent[beat.key] = beat.timestamp_ms + 5

    @app.when_due(silent, on_error=dead)
    def due(due: Any) -> None:
        gone(due.key)

    return TaskProcess(app, app.topology().subtopologies[0], 0, {"silent": DictStore()}, {"beats": 1, "dead": 1})


BEATS = [
    ("beats", SourceRecord(at, at, key, (1).to_bytes(8, "big"))) for at, key in ((0, b"ann"), (1, b"bob"), (50, b"cid"))
]


def test_a_careful_worker_notes_what_comes_due_and_then_the_record_again(tmp_path: Path) -> None:
    path, seen = tmp_path / "note.json", []
    caution = Caution(CallNote(path), careful=True, blamed=())

    def look(key: str) -> None:
        found = CallNote(path).read(7)
        assert found is not None
        seen.append((key, found.shown, found.processors))

    process = task_with_timers(look, look)
    caution.watch_calls("0_0", process)
    for topic, record in BEATS:
        caution.begin(Blame("0_0", topic, 0, record.offset, ("beat",)))
        process.run([(topic, record)])
        caution.end("0_0")
    due = "what came due of silent at {} ms (key b'{}')"
    assert seen == [
        ("ann", "beats-0@0", ("beat",)),
        ("bob", "beats-0@1", ("beat",)),
        ("ann", due.format(5, "ann"), ("due",)),
        ("bob", due.format(6, "bob"), ("due",)),
        ("cid", "beats-0@50", ("beat",)),
    ]
    assert not path.exists()


def test_what_came_due_and_ended_its_process_goes_by_its_policy_alone(tmp_path: Path) -> None:
    notes: list[Blame | None] = []

    def end(key: str) -> None:
        notes.append(CallNote(tmp_path / "note.json").read(7))

    process = task_with_timers(end, str)
    Caution(CallNote(tmp_path / "note.json"), careful=True, blamed=()).watch_calls("0_0", process)
    process.run(BEATS)
    blamed = notes[0]
    assert blamed is not None and blamed.due is not None and blamed.due.key == b"ann"
    called: list[str] = []
    again = task_with_timers(called.append, str)
    Caution(CallNote(tmp_path / "note.json"), careful=False, blamed=[blamed]).watch_calls("0_0", again)
    again.run(BEATS)
    assert called == ["bob"]
    [dead] = again.collect().outputs["dead", 0]
    assert dead.key == b"ann" and b"ended its worker process (exit code 7)" in dict(dead.headers)["error-message"]


def test_a_dead_letter_of_what_came_due_that_is_not_taken_either_is_cut_once(tmp_path: Path) -> None:
    caution = Caution(CallNote(tmp_path / "note.json"), careful=False, blamed=())
    process = task_with_timers(str, str)
    caution.watch_calls("0_0", process)
    assert process.due_calls is not None
    process.run(BEATS)
    assert caution.unfit("0_0", process, process.collect(), Refusal("a record of 9 bytes is too large", "none")), (
        "it is looked for first"
    )
    letters = []
    for _ in range(3):  # the call, its policy, a letter that is cut
        process = task_with_timers(str, str)
        caution.watch_calls("0_0", process)
        process.run(BEATS[:2])
        process.collect()
        process.mark_applied()
        process.run(BEATS[2:], lambda: 1.0, 0.0)
        changes = process.collect()
        letters += changes.outputs.get(("dead", 0), [])
        assert caution.unfit("0_0", process, changes, Refusal("a record of 9 bytes is too large", "none"))
    whole, cut = letters
    assert "error-cut" not in dict(whole.headers) and cut.value is None and "error-cut" in dict(cut.headers)
    process = task_with_timers(str, str)
    caution.watch_calls("0_0", process)
    with pytest.raises(ProcessorFailed, match=r"due failed at .* nor is its dead letter taken; correct") as stopped:
        process.run(BEATS)
    assert stopped.value.due is not None and stopped.value.due.key == b"ann"


def test_an_error_that_shows_a_whole_record_is_shortened_in_a_dead_letter() -> None:
    def fail(key: str) -> None:
        raise ValueError(key * 100_000)

    process = task_with_timers(fail, str)
    process.run(BEATS)
    for letter in process.collect().outputs["dead", 0]:
        message = dict(letter.headers)["error-message"]
        assert len(message) < 11_000 and message.endswith(b"more)")


def test_a_call_that_is_over_is_not_blamed_where_its_note_cannot_be_removed(tmp_path: Path) -> None:
    """A crash hours later was that record's: its task was halted, or the record left out."""
    note = CallNote(note_path(tmp_path, "one"))
    note.write(Blame("0_0", "numbers", 0, 17, ("settle",)))
    tmp_path.chmod(0o500)
    with as_any_user():
        note.clear()
    tmp_path.chmod(0o700)
    assert note.read(-signal.SIGSEGV) is None


def several_readers() -> TaskProcess:
    app = App("bank", partitions=1)
    plain, dead = app.topic("plain", key=str, value=int), app.topic("dead", key=bytes, value=bytes)
    out, beside = app.topic("out", key=str, value=int), app.topic("beside", key=str, value=int)

    @app.processor(plain, out, on_error=dead)
    def one(record: Any, out: Any) -> None:
        out.send(record.key, 1)

    @app.processor(plain, beside, on_error="skip")
    def other(record: Any, beside: Any) -> None:
        beside.send(record.key, 1)

    @app.processor(plain, on_error="skip")
    def silent(record: Any) -> None: ...

    return TaskProcess(
        app, app.topology().subtopologies[0], 0, {}, dict.fromkeys(("plain", "out", "beside", "dead"), 1)
    )


def test_what_is_refused_is_left_to_more_processors_only_where_the_first_ones_did_not_write_it(tmp_path: Path) -> None:
    caution = Caution(CallNote(tmp_path / "note.json"), careful=False, blamed=())

    def refused(topic: str) -> tuple[tuple[str, ...], str]:
        process = several_readers()
        assert process.run([("plain", SourceRecord(0, 0, b"k", (1).to_bytes(8, "big")))]) == 1
        assert caution.unfit("0_0", process, process.collect(), Refusal("it is too large", topic))
        found = caution.blamed("plain", 0, 0)
        assert found is not None
        return found.processors, found.letter.name

    assert refused("out") == (("one",), "WHOLE")
    assert refused("dead") == (("one",), "CUT"), "its own dead letter"
    assert refused("beside") == (("one", "other"), "CUT")
    assert refused("elsewhere") == (("one", "other", "silent"), "CUT")
    assert refused("out") == (("one", "other", "silent"), "NONE"), "none is called, so it is what is left of them"


def test_each_of_several_that_ended_a_worker_at_one_record_answers_for_it(tmp_path: Path) -> None:
    crashes = [Blame("0_0", "plain", 0, 7, (name,), "ended its worker process") for name in ("one", "other")]
    found = Caution(CallNote(tmp_path / "note.json"), careful=True, blamed=crashes).blamed("plain", 0, 7)
    assert found is not None and found.processors == ("one", "other")
