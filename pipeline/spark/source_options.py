"""Options of our data sources. One rule: what a source does not know is refused: a misspelt option would read more than was meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from orchestrator.errors import WrongUse


def option(source: str, options: Mapping[str, str], name: str) -> str:
    """The value of one that a source needs. Raises WrongUse."""
    try:
        return options[name]
    except KeyError:
        raise WrongUse(f'{source} needs .option("{name}", ...)') from None


def check_options(source: str, options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raises WrongUse for one that the source does not know."""
    for name in sorted(set(options) - set(known)):
        close = get_close_matches(name, known, 1)
        meant = f"did you mean {close[0]!r}?" if close else f"it knows {', '.join(known)}"
        raise WrongUse(f"{source} has no option {name!r}; {meant}")
