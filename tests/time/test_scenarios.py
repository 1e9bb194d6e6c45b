"""Runs tests/time/*.txt: events in, calls out. See `tests.time.scenario` for the language."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.testing import Driver
from tests.time.scenario import Play, parsed

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("#"), "a scenario opens with what it expects"
    declared, commands = parsed(text)
    problems = [
        f"{path.name}:{line}: {command}\n  expected {expected}\n  got      {got}"
        for line, command, expected, got in Play(declared).run(commands)
        if expected != got
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_batch_makes_the_same_calls(path: Path) -> None:
    """All records of a scenario at once, where they come in the order of their times."""
    declared, commands = parsed(path.read_text())
    commands = [command for command in commands if command[1].split()[0] not in ("show", "advance")]
    times = [int(command[1].split()[2]) for command in commands]
    if times != sorted(times):
        pytest.skip("a merged batch is sorted, and this scenario is not")
    one_by_one, together = Play(declared), Play(declared)
    one_by_one.run(commands)
    with Driver(together.app) as driver, driver.together():
        for topic, key, at, value in together.records(commands):
            driver.send(together.topics[topic], key, value, timestamp_ms=at)
    if any(line.startswith("foreign") for line in declared):  # its intermediate calls are outside of the one answer
        assert last_of_each(together.calls) == last_of_each(one_by_one.calls)
    else:
        assert together.calls == one_by_one.calls


def last_of_each(calls: list[str]) -> dict[str, str]:
    """The last result by name and key; one that is taken back may not have been there in another order."""
    last = {" ".join(call.split()[:2]): call for call in calls}
    return {name: call for name, call in last.items() if not call.endswith("taken back")}
