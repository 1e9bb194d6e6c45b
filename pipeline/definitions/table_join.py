"""A join of two tables as an app declares it: `@app.table_join(orders, payments, ..., kind="left")`.

One rule: what cannot meet is refused at import. A side is a topic as a table (`app.table_of`; a topic alone stands for it)
or a table of the app; rows of both sides with one key lie in one task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from pipeline.definitions.definition import Declared, Owner, Stored, TableDef, Topic
from pipeline.definitions.topic_tables import TopicTableDef
from pipeline.errors import DefinitionError
from pipeline.values.codecs import codec_name

Kind = Literal["inner", "left", "outer"]


class TableJoin:
    """See the module. `name` is that of the function."""

    def __init__(self, name: str, left: Stored[Any], right: Stored[Any], kind: Any) -> None:
        if kind not in get_args(Kind):
            raise DefinitionError(f'table join {name}: kind={kind!r} is not one of "inner", "left", "outer"')
        self.name = name
        self.left, self.right = left, right
        self.kind: Kind = kind
        names = codec_name(left.key_codec), codec_name(right.key_codec)
        if names[0] != names[1]:
            raise DefinitionError(
                f"table join {name}: keys of {left.name!r} are {names[0]} and those of {right.name!r} {names[1]}, so no two "
                "are equal; use @app.foreign_key_join(..., key=...), or rekey one of them"
            )
        if left.route is not right.route:
            raise DefinitionError(
                f"table join {name}: {left.name!r} and {right.name!r} have different route=, so rows of one key lie in "
                "different tasks; give both the same function"
            )

    @property
    def sides(self) -> tuple[Stored[Any], ...]:
        return (self.left,) if self.left is self.right else (self.left, self.right)

    def has_result(self, left: object, right: object) -> bool:
        """Whether rows of the two sides, or None where there is none, make a result."""
        if self.kind == "inner":
            return left is not None and right is not None
        return left is not None or (self.kind == "outer" and right is not None)


def checked_table(app: Owner, what: str, side: Any, table_of: Callable[[Topic[Any, Any]], Any]) -> Stored[Any]:
    """A side of a join of tables; `table_of` gives the table of a topic. Raises DefinitionError."""
    if isinstance(side, Declared) and side.app is not app:
        raise DefinitionError(f"{side.kind} {side.name!r} belongs to app {side.app.id!r}, not to {app.id!r}")
    found = table_of(side) if isinstance(side, Topic) else side
    if not isinstance(found, TopicTableDef | TableDef):
        shown = f"{side.kind} {side.name!r}" if isinstance(side, Declared) else repr(side)
        raise DefinitionError(
            f"{what}: {shown} cannot be joined as a table; give app.table_of(topic) or a table without windows"
        )
    if found.spec.expire_ms is not None and isinstance(found, TableDef):
        raise DefinitionError(
            f"{what}: table {found.name!r} has expire=, and a row that expires changes without a call; leave expire= out"
        )
    if found.local:
        raise DefinitionError(
            f"{what}: table {found.name!r} has local=True, so rows of one key may lie in several tasks; leave it out"
        )
    found.is_joined = True
    return found


def not_writing(name: str, sides: tuple[Stored[Any], ...], others: tuple[Declared[Any], ...]) -> None:
    """Refuses a function that is called for each change of a table and changes it. Raises DefinitionError."""
    for side in sides:
        if isinstance(side, TableDef) and side in others:
            raise DefinitionError(
                f"{name} is called for each change of table {side.name!r}, so it must not write it; leave it out"
            )
        source = side.source
        if source is not None and source in others:
            raise DefinitionError(
                f"{name} is called for each record of topic {source.name!r}, so what it sent there would call it for "
                "ever; give its results a topic of their own"
            )
