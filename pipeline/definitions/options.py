"""Checks of options that an app gives for what it declares.

One rule: a wrong one is named where it is declared, with what there is instead. Used by the definitions of this room.
"""

from __future__ import annotations

import keyword
from collections.abc import Collection
from typing import TypeGuard

from pipeline.errors import DefinitionError

# Of a topic. Each is a row or more of the log and a task with its stores; Kafka's own advice is fewer in a whole cluster. What a
# typing error asks for beyond that fills a machine's memory before anything could be reported.
PARTITIONS_MAX = 100_000


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


def checked_partitions(what: str, partitions: object) -> int:
    """A number of partitions that a topic can have. Raises DefinitionError."""
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise DefinitionError(f"{what}: partitions={partitions!r} is not a number of at least 1")
    if partitions > PARTITIONS_MAX:
        raise DefinitionError(
            f"{what}: partitions= is above {PARTITIONS_MAX}, and a task for each is too much; give at most that many"
        )
    return partitions


def checked_alias(what: str, alias: object) -> str | None:
    """The name of a parameter; None where it follows from the definition's. Raises DefinitionError."""
    if alias is None or is_parameter(alias):
        return alias
    raise DefinitionError(f"{what}: alias={alias!r} cannot be a parameter's name; give alias='a_name', or leave it out")


def is_parameter(name: object) -> TypeGuard[str]:
    """Whether a function can have a parameter of that name."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
