"""A stream join as an app declares it: `@app.join(orders, shipments, ..., within=timedelta(hours=1))`.

One rule: what cannot match is refused at import. Its records that are not over are kept in a table of its own,
`<name of the function>-join`, which moves and restores with the task.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, ClassVar, Literal, get_args

from pipeline.definitions.definition import Owner, Topic
from pipeline.definitions.timed import DROP, OnLate, TimedDef, checked_on_late
from pipeline.errors import DefinitionError
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time.durations import duration_ms
from pipeline.time.join_view import LEFT, RIGHT, JoinView, Side
from pipeline.time.position import Position
from pipeline.time.timed_view import CheckOwner
from pipeline.values.codecs import BytesCodec, codec_name

Kind = Literal["inner", "left", "outer"]
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")  # in the name of a function that has none
Within = timedelta | tuple[timedelta, timedelta]


class JoinDef(TimedDef[Any]):
    """See the module. `partition` of the view is the task's."""

    kind: ClassVar[str] = "join"

    def __init__(
        self,
        app: Owner,
        name: str,
        left: Topic[Any, Any],
        right: Topic[Any, Any],
        *,
        within: Any,
        grace: timedelta,
        kind: Any,
        on_late: OnLate = DROP,
    ) -> None:
        super().__init__(app, f"{re.sub(_NO_NAME, '', name) or 'pairs'}-join", None)
        what = f"join {name}"
        self.left, self.right = left, right
        before, after = within if isinstance(within, tuple) and len(within) == 2 else (within, within)
        self.before_ms = duration_ms(what, "within", before, least_ms=0)
        self.after_ms = duration_ms(what, "within", after, least_ms=0)
        self.grace_ms = duration_ms(what, "grace", grace, least_ms=0)
        if kind not in get_args(Kind):
            raise DefinitionError(f'{what}: kind={kind!r} is not one of "inner", "left", "outer"')
        self.join_kind: Kind = kind
        names = codec_name(left.key_codec), codec_name(right.key_codec)
        if names[0] != names[1]:
            raise DefinitionError(
                f"{what}: keys of {left.name!r} are {names[0]} and those of {right.name!r} {names[1]}, so no two are equal; "
                "rekey one of them"
            )
        self.on_late = checked_on_late(app, what, on_late)
        self.key_codec = self.value_codec = BytesCodec()
        self.spec = TableSpec(self.name, self.key_codec, self.value_codec)

    @property
    def sides(self) -> tuple[str, str]:
        """The names of what it joins: what is kept is of the one or of the other."""
        return self.left.name, self.right.name

    def sides_of(self, topic: str) -> tuple[int, ...]:
        """On which sides records of a topic are."""
        return tuple(side for side, of in ((LEFT, self.left), (RIGHT, self.right)) if of.topic == topic)

    def announces_alone(self, side: int) -> bool:
        """Whether the function is called with a record of this side alone, where nothing has matched it."""
        return self.join_kind == "outer" or (self.join_kind == "left" and side == LEFT)

    def view(
        self, store: StoreView, check_owner: CheckOwner | None, position: Position, *, announces: bool
    ) -> JoinView:
        sides = [
            Side(of.topic, of.key_codec, of.value_codec, reach_ms, self.announces_alone(side))
            for side, of, reach_ms in ((LEFT, self.left, self.after_ms), (RIGHT, self.right, self.before_ms))
        ]
        return JoinView(self.name, store, position, self.order, sides=(sides[0], sides[1]), grace_ms=self.grace_ms)

    def described(self) -> dict[str, Any]:
        bounds = {"before_ms": self.before_ms, "after_ms": self.after_ms, "grace_ms": self.grace_ms}
        return {"kind": "join", **bounds, "stored": 2}  # how its entries lie: 1 was by key alone


def checked_sides(app: Owner, left: Any, right: Any) -> tuple[Topic[Any, Any], Topic[Any, Any]]:
    """The two topics of a join, which may be one. Raises DefinitionError."""
    for topic in (left, right):
        if not isinstance(topic, Topic):
            raise DefinitionError(f"app {app.id!r}: {topic!r} cannot be joined; @app.join(...) takes two topics")
        if topic.app is not app:
            raise DefinitionError(f"topic {topic.name!r} belongs to app {topic.app.id!r}, not to {app.id!r}")
    return left, right
