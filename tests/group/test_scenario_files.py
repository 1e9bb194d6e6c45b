"""Scenario files as text: comments, blank lines, and what is no scenario file."""

from __future__ import annotations

import pytest

from orchestrator.errors import WrongUse
from orchestrator.names import natural
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.scenario_files import Block, parse


def test_a_comment_is_no_blank_line() -> None:
    plain = "# a what-if\ngroup T1 T2\n# where they are\nS1 T1  # the first\nS2 T2\nrestart coordinator\n\njoin S3\n"
    assert parse(plain) == [
        Block(2, "group T1 T2", ("S1 T1", "S2 T2")),
        Block(6, "restart coordinator"),
        Block(8, "join S3"),
    ]


def test_comments_are_no_part_of_what_is_expected() -> None:
    text = "join S3\n# why\n----\ngeneration 1 leader S1  # it grows\n# a row each\n  S1  active []\n"
    assert parse(text) == [Block(1, "join S3", (), "generation 1 leader S1\n  S1  active []")]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_nothing_is_nothing(text: str) -> None:
    assert parse(text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("join S1\n\n----\nok\n", "line 1: 'join S1' has no '----' below it"),
        ("join S1\n----\nok\njoin S2\n----\nok\n", "line 5: a second '----' in a block"),
        ("\n----\nok\n", "line 2: no command above '----'"),
    ],
)
def test_what_is_no_scenario_file(text: str, said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        parse(text)


def test_line_ends_and_a_byte_order_mark_are_no_matter() -> None:
    assert parse("\ufeffgroup T1\r\nS1 T1\r\n----\r\nok\r\n") == [Block(1, "group T1", ("S1 T1",), "ok")]


def test_names_and_numbers_of_any_length_are_no_matter() -> None:
    """Python reads no number of 5,000 digits: such a name is a name like any, and such a count is refused."""
    scenario, long = Scenario(), "9" * 5_000
    assert scenario.run(Block(1, f"group T1 T{long}", (f"S1 T1 T{long}",))).error is None
    assert list(scenario.run(Block(2, f"join S{long}")).members) == ["S1", f"S{long}"]
    for command in (
        f"join S3 capacity={long}",
        f"config standbys={long}",
        f"weight T1 {long}",
        f"scale-down --to {long}",
    ):
        assert scenario.run(Block(3, command)).error is not None


def test_numbers_in_names_count_by_value() -> None:
    in_order = ["S", "S01", "S1", "S1a", "S1a2", "S1a10", "S2", "S010", "S10", f"S{10**18}", "T0"]
    assert sorted(set(in_order), key=natural) == in_order
