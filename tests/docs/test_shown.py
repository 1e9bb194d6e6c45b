"""What the pages show beside programs: commands are taken by our own parsers, settings by their tables, and copies are
what they are copies of. One rule: nothing is started here; sessions that run are in test_sessions.py."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.arguments import described
from orchestrator.cli.commands import COMMANDS, place_called
from orchestrator.cli.settings import TABLE
from orchestrator.errors import WrongUse
from tests.docs.snippets import PAGES, ROOT, Block, blocks, commands

OURS = re.compile(r"(?:^|[|;&(]\s*|-- |\S/bin/)orchestrator (.*?)(?=\s*[|;)&]|$|\s*>)")
# What else the pages call. Programs of others are not checked, but their names are.
OTHERS = {
    *(
        "awk",
        "cat",
        "cd",
        "curl",
        "docker",
        "echo",
        "export",
        "grep",
        "head",
        "journalctl",
        "kill",
        "kubectl",
        "make",
        "mkdir",
    ),
    *("pip", "python", "sudo", "cp", "pytest", "source", "openssl"),
}
OTHER_SIGNS = {".", "python -m venv"}


def shown(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def words_of(text: str) -> list[list[str]]:
    """The words of each call of `orchestrator` in a line."""
    line = re.sub(r"\s+#\s.*$", "", text)
    return [shlex.split(found) for found in OURS.findall(line)]


def parse(words: list[str]) -> None:
    """Parse as the command does, a verb by the verb's own parser. Raises WrongUse, KeyError, SystemExit."""
    name, rest = words[0], words[1:]
    if name == "--version" or "--help" in rest:
        return
    command = place_called(COMMANDS[name][0])
    parser = described(lambda _: command(rest))
    rest = words[len(parser.prog.split()) - 1 :]  # without the verb, where it has a parser of its own
    getattr(parser, "parse_intermixed_args" if name in ("query", "table") else "parse_args")(rest)


@pytest.mark.parametrize("block", shown("console"), ids=lambda block: block.where)
def test_commands_of_a_page_are_taken(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(block):
        ours = words_of(command.text)
        first = command.text.split()[0]
        assert ours or first in OTHERS | OTHER_SIGNS, f"{command.where}: who is {first}?"
        for words in ours:
            try:
                parse(words)
            except WrongUse as error:
                assert any(line.startswith("error: ") for line in command.output), f"{command.where}: {error}"


def test_a_wrong_command_is_seen() -> None:
    assert words_of("curl x | orchestrator status bank; orchestrator wait bank") == [
        ["status", "bank"],
        ["wait", "bank"],
    ]
    with pytest.raises(WrongUse):
        parse(["status", "bank", "--wach"])
    with pytest.raises(KeyError):
        parse(["stauts", "bank"])


def test_settings_files() -> None:
    for block in shown("toml"):
        found = tomllib.loads(block.text)
        for name, value in found.items():
            TABLE[name].read(str(value), block.where)
    assert len(shown("toml")) > 1


def test_yaml_can_be_read() -> None:
    found = [yaml.safe_load(block.text) for block in shown("yaml")]
    assert {key for one in found for key in one} >= {"scrape_configs", "groups"}


def test_copies_are_what_they_are_copies_of() -> None:
    [unit] = shown("ini")
    assert unit.text.partition("\n")[2] == (ROOT / "deploy/orchestrator@.service").read_text()
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(unit.text)
    assert "Service" in parser


def test_dockerfiles_set_what_is_a_setting() -> None:
    [block] = shown("dockerfile")
    given = set(re.findall(r"\b(ORCHESTRATOR_\w+)=", block.text))
    assert given and given <= {setting.variable for setting in TABLE.values()}
    assert block.text.splitlines()[1].startswith("FROM python:3.12-slim")
