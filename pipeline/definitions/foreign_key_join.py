"""A join of two tables by a foreign key, as an app declares it: `@app.foreign_key_join(orders, customers, key=...)`.

One rule: it is Kafka's KIP-213. The task of a left row subscribes to its foreign key with the task of the right row, and gets
an answer for each change of that; a hash of the left row's value goes with both, and an answer to an older value is dropped.
So it has two topics between its two subtopologies, and a table on each side: `<function>-join` keeps the foreign key, hash and
time of each left row, `<function>-subscriptions` the left rows of each foreign key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args

from pipeline.definitions.definition import Owner, Stored, Topic
from pipeline.errors import DefinitionError
from pipeline.tables.grouped import GroupedTable
from pipeline.tables.table import StoreView, TableSpec
from pipeline.tables.view import TableView
from pipeline.time.position import Position
from pipeline.values.codecs import BytesCodec

Kind = Literal["inner", "left"]
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")  # in the name of a function that has none


class JoinState(Stored[Any]):
    """What a side of the join keeps. Only the join reads it; keys and values are bytes."""

    kind: ClassVar[str] = "join"
    in_order: ClassVar[bool] = True

    def __init__(self, app: Owner, name: str, *, sides: tuple[str, str], is_grouped: bool) -> None:
        super().__init__(app, name, None)
        self.key_codec = self.value_codec = BytesCodec()
        self.spec = TableSpec(name, self.key_codec, self.value_codec)
        self.sides = sides  # the names of the tables that are joined
        self.is_grouped = is_grouped

    def view(
        self, store: StoreView, check_owner: Callable[[Any, bytes], None] | None, position: Position, *, announces: bool
    ) -> TableView[Any, Any]:
        return GroupedTable(self.spec, store) if self.is_grouped else TableView(self.spec, store)

    def described(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"kind": "subscriptions" if self.is_grouped else "foreign keys"}


class ForeignKeyJoin:
    """See the module. `name` is that of the function."""

    def __init__(self, app: Owner, name: str, left: Stored[Any], right: Stored[Any], *, key: Any, kind: Any) -> None:
        what = f"foreign-key join {name}"
        if kind not in get_args(Kind):
            raise DefinitionError(
                f'{what}: kind={kind!r} is not one of "inner", "left"; a right row without left ones has no key for a result'
            )
        if not callable(key):
            raise DefinitionError(f"{what}: key={key!r} is not a function; write key=lambda order: order.customer")
        for side in (left, right):
            if side.route is not None:
                raise DefinitionError(
                    f"{what}: table {side.name!r} has route=, and its rows are found by their keys; leave it out"
                )
        base = re.sub(_NO_NAME, "", name) or "rows"
        self.name = name
        self.left, self.right = left, right
        self.key: Callable[[Any], Any] = key
        self.kind: Kind = kind
        self.subscriptions: Topic[Any, bytes] = _between(app, f"{base}-subscription", right)
        self.answers: Topic[Any, bytes] = _between(app, f"{base}-answer", left)
        sides = left.name, right.name
        self.left_state = JoinState(app, f"{base}-join", sides=sides, is_grouped=False)
        self.right_state = JoinState(app, f"{base}-subscriptions", sides=sides, is_grouped=True)

    @property
    def keeps_left_alone(self) -> bool:
        """Whether a left row without a right one has a result."""
        return self.kind == "left"


class ForeignKeySide:
    """One side of a join, which a processor of its own stands for: what it needs of its task, and what it reads and sends."""

    def __init__(self, join: ForeignKeyJoin, *, is_left: bool) -> None:
        self.join = join
        self.is_left = is_left

    @property
    def sides(self) -> tuple[Stored[Any], ...]:
        """The tables that its calls go by."""
        join = self.join
        return (join.left_state, join.left) if self.is_left else (join.right_state, join.right)

    @property
    def table(self) -> Stored[Any]:
        return self.join.left if self.is_left else self.join.right

    @property
    def reads(self) -> tuple[Topic[Any, Any], ...]:
        source = self.table.source
        between = self.join.answers if self.is_left else self.join.subscriptions
        return (between,) if source is None else (source, between)

    @property
    def sends_to(self) -> Topic[Any, bytes]:
        return self.join.subscriptions if self.is_left else self.join.answers


def _between(app: Owner, name: str, table: Stored[Any]) -> Topic[Any, bytes]:
    """A topic that lies between two tasks of the join, keyed as the table of the tasks that read it."""
    key: Any = table.key_codec
    return Topic(app, name, key, bytes, is_between=True)
