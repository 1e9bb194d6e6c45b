"""Scenario files as text: comments, blank lines, and what is no scenario file."""

from __future__ import annotations

import pytest

from orchestrator.errors import WrongUse
from orchestrator.scenario_files import Block, parse


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
