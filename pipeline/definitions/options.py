"""Checks of options that an app gives for what it declares.

One rule: a wrong one is named where it is declared, with what there is instead. Used by the definitions of this room.
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline.errors import DefinitionError


def checked_options(what: str, options: Collection[str], known: Collection[str]) -> None:
    """Raises DefinitionError where one is none of those that are known."""
    for name in options:
        if name not in known:
            raise DefinitionError(
                f"{what}: there is no option {name}=; there are {', '.join(f'{one}=' for one in known)}"
            )


def checked_flag(what: str, option: str, given: object) -> bool:
    """An option that is on or off. Raises DefinitionError."""
    if not isinstance(given, bool):
        raise DefinitionError(f"{what}: {option}={given!r} is neither True nor False")
    return given


def checked_local(what: str, local: object, route: object) -> bool:
    """`local=` of a table. Raises DefinitionError."""
    if route is not None and local:
        raise DefinitionError(f"{what}: route= says whose a key is, local=True that any task may write it; give one")
    return checked_flag(what, "local", local)
