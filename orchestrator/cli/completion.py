"""`orchestrator completion bash|zsh|fish`: a script that completes commands, options and their values in a shell.

One rule: it is made of the parsers that the commands parse with, so an option that is there is completed, and no other.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.cli.arguments import Describable, Parser, described
from orchestrator.cli.commands import COMMANDS, place_called
from orchestrator.error_report import EXTRAS

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `takes` a value, or none; `choices` of it, where they are few."""

    name: str
    help: str
    takes: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `verbs`: what its first word may be, where they are few."""

    name: str
    help: str
    verbs: tuple[str, ...]
    options: tuple[Option, ...]


def run(argv: list[str]) -> int:
    """Runs `orchestrator completion`; its exit code."""
    parser = Parser(
        "completion", "Print a script that completes commands and options in a shell; see docs/completion.md."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS))
    args = parser.parse_args(argv)
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](commands()), end="")
    return 0


def commands() -> list[Command]:
    """Returns what each command takes. Imports them all."""
    found: list[Command] = []
    for name, (place, text) in COMMANDS.items():
        try:
            parser = described(place_called(place))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRAS:
                raise
            found.append(Command(name, text, (), ()))  # of an extra that is not installed: its name alone
            continue
        options = [option for action in parser._actions for option in _options(parser, action)]
        words = [action for action in parser._actions if not action.option_strings]
        verbs = tuple(words[0].choices or ()) if words else ()
        found.append(Command(name, text, tuple(map(str, verbs)), tuple(options)))
    return found


def _options(parser: Describable, action: argparse.Action) -> list[Option]:
    if action.help == argparse.SUPPRESS:
        return []
    text = re.sub(r"\s*\[env: .*\]$", "", (action.help or "").replace("%%", "%"))
    choices = tuple(map(str, action.choices or parser.choices_of(action.dest)))
    return [Option(name, text, action.nargs != 0, choices) for name in action.option_strings if name.startswith("--")]


def bash(found: Sequence[Command]) -> str:
    """Returns the script for bash 4 and later."""
    names = " ".join(command.name for command in found)
    lines = [
        "# completion of orchestrator for bash",
        "_orchestrator() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        "    COMPREPLY=()",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$current"))',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]} $before" in',
    ]
    for command in found:
        for option in command.options:
            if option.choices:
                lines.append(f'        "{command.name} {option.name}") words="{" ".join(option.choices)}" ;;')
        plain = [f'"{command.name} {option.name}"' for option in command.options if option.takes and not option.choices]
        if plain:
            lines.append(f'        {"|".join(plain)}) COMPREPLY=($(compgen -f -- "$current")); return ;;')
    lines += ["    esac", '    if [ -z "$words" ]; then', '        case "${COMP_WORDS[1]}" in']
    for command in found:
        options = " ".join(option.name for option in command.options)
        lines.append(f'            {command.name}) words="{options}" ;;')
    lines += ["        esac", '        if [ "$COMP_CWORD" -eq 2 ]; then', '            case "${COMP_WORDS[1]}" in']
    lines += [f'                {c.name}) words="{" ".join(c.verbs)} $words" ;;' for c in found if c.verbs]
    lines += [
        "                *) ;;",
        "            esac",
        "        fi",
        "    fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _orchestrator orchestrator",
    ]
    return "\n".join(lines) + "\n"


def zsh(found: Sequence[Command]) -> str:
    """Returns the script for zsh: a file `_orchestrator` in a folder of $fpath, or sourced after compinit."""
    lines = ["#compdef orchestrator", "_orchestrator() {", "    local -a commands", "    commands=("]
    lines += [f"        {_zsh(f'{c.name}:{c.help}')}" for c in found]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
        "    fi",
        '    case "$words[2]" in',
    ]
    for command in found:
        lines.append(f"        {command.name})")
        specs = [_zsh(_spec(option)) for option in command.options]
        first = f"1:word:({' '.join(command.verbs)})" if command.verbs else "1:app:_files"
        specs += [_zsh(first), _zsh("*:word:_files")]
        lines += ["            shift words; (( CURRENT-- ))", f"            _arguments {' '.join(specs)} ;;"]
    lines += ["    esac", "}", 'if [ "$funcstack[1]" = "_orchestrator" ]; then', '    _orchestrator "$@"', "else"]
    lines += ["    compdef _orchestrator orchestrator", "fi"]
    return "\n".join(lines) + "\n"


def _spec(option: Option) -> str:
    text = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
    values = f"({' '.join(option.choices)})" if option.choices else "_files"
    return f"{option.name}[{text}]" + (f":value:{values}" if option.takes else "")


def _zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def fish(found: Sequence[Command]) -> str:
    """Returns the script for fish: ~/.config/fish/completions/orchestrator.fish."""
    lines = ["# completion of orchestrator for fish"]
    for command in found:
        head = "complete -c orchestrator -n __fish_use_subcommand -f"
        lines.append(f"{head} -a {command.name} -d {_fish(command.help)}")
        head = f"complete -c orchestrator -n '__fish_seen_subcommand_from {command.name}'"
        if command.verbs:
            lines.append(f"{head} -a {_fish(' '.join(command.verbs))}")
        for option in command.options:
            values = f" -x -a {_fish(' '.join(option.choices))}" if option.choices else " -r" if option.takes else ""
            lines.append(f"{head} -l {option.name.removeprefix('--')}{values} -d {_fish(option.help)}")
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
