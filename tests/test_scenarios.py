"""Runs tests/scenarios/*.txt. Invariants are checked after every command, outside the rewritable text."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.simulator.scenario import Scenario, parse

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_scenario(path: Path, rewrite: bool) -> None:
    text = path.read_text()
    assert text.startswith("#"), "a scenario opens with what it expects and which law it shows"
    scenario, lines, problems = Scenario(), text.splitlines(), []
    for block in parse(text):
        outcome = scenario.run(block)
        if outcome.text != block.expected:
            problems.append(
                f"{path.name}:{block.line}: {block.command}\n--- expected\n{block.expected}\n--- got\n{outcome.text}"
            )
    if problems and rewrite:
        path.write_text(rewritten(lines))
        return
    assert not problems, "\n\n".join(problems)


def rewritten(lines: list[str]) -> str:
    """The file with what the commands print now."""
    scenario, out, index = Scenario(), [], 0
    blocks = {b.line: b for b in parse("\n".join(lines))}
    while index < len(lines):
        block = blocks.get(index + 1)
        if block is None:
            out.append(lines[index])
            index += 1
            continue
        while lines[index].strip() != "----":
            out.append(lines[index])
            index += 1
        out += ["----", *scenario.run(block).text.splitlines()]
        index += 1
        while index < len(lines) and lines[index].strip():
            index += 1
    return "\n".join(out) + "\n"
