"""Argument parsing as all commands do it: no abbreviations, errors in one line with exit code 2.

One rule: an option that is also a setting is declared by its name alone; what it means is in the table of settings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from orchestrator.cli.settings import TABLE, Sources, current
from orchestrator.errors import WrongUse
from orchestrator.setting import Setting


class Described(BaseException):
    """In place of parsing: a parser is to be looked at. No command catches it."""

    def __init__(self, parser: Describable) -> None:
        self.parser = parser


def described(command: Callable[[list[str]], object]) -> Describable:
    """Returns the parser that a command parses with."""
    Describable.is_described = True
    try:
        command(["--help"])
    except Described as found:
        return found.parser
    finally:
        Describable.is_described = False
    raise AssertionError(f"{command} has no parser")


class Describable(argparse.ArgumentParser):
    """An ArgumentParser that `described` can look at."""

    is_described = False  # whether parsers are looked at, and parse nothing

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it. Raises Described where it is looked at."""
        if Describable.is_described:
            raise Described(self)
        return super().parse_known_args(args, namespace)

    def choices_of(self, option: str) -> tuple[str, ...]:
        """The values that an option's setting may have, where they are few."""
        return ()


class Parser(Describable):
    """An ArgumentParser that raises WrongUse."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"orchestrator {command}", description=description, allow_abbrev=False)
        self._settings: dict[str, tuple[Setting, str | None]] = {}
        self.given: dict[str, str] = {}  # settings that the command line gave, once it is parsed

    def error(self, message: str) -> NoReturn:
        raise WrongUse(f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help")

    def settings(self, *names: str) -> None:
        """Options that the environment and files can give too, by the names of their rows."""
        for name in names:
            self.setting(name)

    def setting(self, name: str, *, default: str | None = None, help: str | None = None) -> None:
        """One such option. `default` and `help` may be the command's own."""
        setting = TABLE[name]
        shown = setting.in_effect(setting.default) if default is None else default
        text = f"{help or setting.help} [env: {setting.variable}{f', default {shown}' if shown else ''}]"
        self._settings[name] = setting, default
        alone: dict[str, Any] = {} if setting.alone is None else {"nargs": "?", "const": setting.alone}
        self.add_argument(
            f"--{name}",
            help=argparse.SUPPRESS if setting.hidden else text.replace("%", "%%"),
            metavar=_metavar(setting),
            **alone,
        )

    def choices_of(self, option: str) -> tuple[str, ...]:
        """The values that a setting of this parser may have, where they are few."""
        return next((row.choices for row, _ in self._settings.values() if row.option == option), ())

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, then fill in what was not given on the command line from the other sources of settings."""
        return self._filled(super().parse_args(args, namespace))

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The same for commands whose names and options may come in any order."""
        return self._filled(super().parse_intermixed_args(args, namespace))

    def _filled(self, found: Any) -> Any:
        """`found.flags` names the settings that the command line gave."""
        if self._settings:
            sources = current()
            for warning in sources.strange():
                print(f"warning: {warning}", file=sys.stderr)
            self.given = {  # as written
                name: text
                for name, (setting, _) in self._settings.items()
                if (text := getattr(found, setting.option)) is not None
            }
            found.flags = tuple(self.given)
            for setting, default in self._settings.values():
                setattr(found, setting.option, _value(setting, getattr(found, setting.option), sources, default))
        return found


def _value(setting: Setting, flag: str | None, sources: Sources, default: str | None) -> Any:
    if flag is not None:
        return setting.read(flag, f"--{setting.name} {flag}" if flag else f"--{setting.name}")
    given = sources.given(setting)
    if given is not None:
        return setting.read(given.text, given.shown(setting))
    text = setting.default if default is None else default
    return setting.read(text, setting.name) if text else ("" if setting.parse is str else None)


def _metavar(setting: Setting) -> str:
    return "{" + ",".join(setting.choices) + "}" if setting.choices else setting.name.upper().replace("-", "_")


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A `type=` for add_argument whose WrongUse becomes the option's error."""

    def check(text: str) -> Any:
        try:
            return parse(text)
        except WrongUse as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return check
