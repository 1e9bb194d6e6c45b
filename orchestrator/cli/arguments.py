"""Argument parsing as all commands do it: no abbreviations, errors in one line with exit code 2.

One rule: an option that is also a setting names its environment variable in --help.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from orchestrator.errors import WrongUse


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises WrongUse."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"orchestrator {command}", description=description, allow_abbrev=False, exit_on_error=False
        )

    def error(self, message: str) -> NoReturn:
        raise WrongUse(f"{self.prog}: {message}; see {self.prog} --help")

    def setting(self, flag: str, *, default: Any, help: str, parse: Callable[[str], Any] = str, **more: Any) -> None:
        """An option that the environment can give too: `--commit-interval` is ORCHESTRATOR_COMMIT_INTERVAL."""
        variable = "ORCHESTRATOR_" + flag.lstrip("-").replace("-", "_").upper()
        given = os.environ.get(variable)
        value = default
        if given is not None:
            try:
                value = parse(given)
            except (ValueError, WrongUse) as error:
                raise WrongUse(f"{variable}={given}: {error}") from None
        shown = "" if default is None else f", default {default}"
        self.add_argument(
            flag,
            type=_checked(parse),
            default=value,
            help=f"{help} [env: {variable}{shown}]".replace("%", "%%"),
            **more,
        )


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def check(text: str) -> Any:
        try:
            return parse(text)
        except WrongUse as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    check.__name__ = getattr(parse, "__name__", "value")
    return check
