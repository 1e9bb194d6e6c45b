"""The view of an application's facts: own records that are applied before or after they are read back."""

from __future__ import annotations

from state.log.group_store import MetadataKind
from state.log.kafka.facts import EVERYBODYS, UNDER_LEASE, View, fenced_record, metadata_record
from state.log.protocol import NewRecord

NOTE = MetadataKind("note")


def read(view: View, offset: int, record: NewRecord) -> None:
    view.apply(EVERYBODYS, offset, record.key, record.value)


def note(value: bytes | None) -> NewRecord:
    return metadata_record(NOTE, "k", value)


def test_nothing_is_kept_of_what_was_removed() -> None:
    """Of each worker that was ever fenced something stayed, in every process."""
    view = View("app")
    for number in range(1000):
        name = f"fenced/{number}".encode()
        view.apply(UNDER_LEASE, 2 * number, name, fenced_record("w", 1).value)
        view.apply(UNDER_LEASE, 2 * number + 1, name, None)
    assert view._found == ({}, {})
    assert not view.is_fenced("1")


def test_of_two_records_the_later_one_counts_whichever_is_applied_first() -> None:
    view = View("app")
    view.apply_own(EVERYBODYS, 11, [note(None)])
    read(view, 5, note(b"older"))
    assert view.metadata(NOTE, "k") is None
    read(view, 10, note(None))
    assert view.metadata(NOTE, "k") is None
    read(view, 20, note(b"another's"))
    read(view, 21, note(None))
    view.apply_own(EVERYBODYS, 20, [note(b"own, answered late")])
    assert view.metadata(NOTE, "k") is None
    view.apply_own(EVERYBODYS, 23, [note(b"own")])
    assert view.metadata(NOTE, "k") == b"own"
