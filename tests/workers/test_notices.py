"""What a worker has operators know: a coordinator takes it, whatever it is."""

from __future__ import annotations

from orchestrator.coordinator.messages import TEXT_MAX
from workers.worker.notices import LINE_MAX, LINES_MAX, joined


def test_lines_are_said_as_they_are_and_an_error_of_several_is_one() -> None:
    assert joined([]) == ""
    assert joined(["waits", "0_1 is halted: first\n  second"]) == "waits\n0_1 is halted: first second"
    assert joined(["x"] * LINES_MAX) == "\n".join(["x"] * LINES_MAX)


def test_many_and_long_lines_are_no_more_than_a_message_takes() -> None:
    """Of a thousand partitions without a leader, or of an error as long as a record."""
    found = joined(["y" * 10 * TEXT_MAX] * 2_000)
    assert len(found) + LINE_MAX < TEXT_MAX
    *lines, last = found.splitlines()
    assert len(lines) == LINES_MAX and last == f"and {2_000 - LINES_MAX} more"
    assert lines[0] == "y" * LINE_MAX + "..."
