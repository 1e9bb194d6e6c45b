"""Runs tests/time/cases/*.txt: what the tests of other stream processors ask of windows, sessions, timers, joins and lookups, each case a
scenario of its own (`== what it says`, see `tests.time.scenario`), with the answers of our rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.time.scenario import Play, parsed


def cases() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((Path(__file__).parent / "cases").glob("*.txt")):
        head, *parts = path.read_text().split("\n== ")
        assert head.startswith("#"), "a file of cases opens with whose they are"
        for part in parts:
            name, _, text = part.partition("\n")
            assert f"{path.stem}: {name}" not in found, name
            found[f"{path.stem}: {name}"] = text
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    declared, commands = parsed(CASES[name])
    problems = [
        f"{command}\n  expected {expected}\n  got      {got}"
        for _, command, expected, got in Play(declared).run(commands)
        if expected != got
    ]
    assert not problems, "\n".join([name, *problems])
