"""How tables are declared, for type checkers: `app.table(...)`, with windows or without, and `app.timers(...)`.

One rule: the kind of window decides what a function gets: a dict, one for each window, or one for each session. A type
that a checker cannot name (a union, a generic) gives Any for its part.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from pipeline.definitions.definition import Declared, KeyedDef, TableDef, Topic
from pipeline.definitions.options import checked_options
from pipeline.definitions.timed import HoppingDef, OnLate, SessionDef, TimersDef, TumblingDef, WindowedDef
from pipeline.definitions.topic_tables import GlobalTableDef, TopicTableDef
from pipeline.errors import DefinitionError
from pipeline.time.windows import Hopping, Session, Sliding, Tumbling
from pipeline.values.codecs import Codec

K = TypeVar("K")
V = TypeVar("V")


class Options(TypedDict, total=False):
    """Options of any table."""

    default: Callable[[], Any] | None
    route: Callable[[Any], Any] | None
    local: bool
    upgrade: Callable[[Any], Any] | None
    alias: str | None


class WindowOptions(Options, total=False):
    """Options of a table of windows."""

    grace: timedelta
    retain: timedelta | None
    on_late: OnLate


class DeclaresTables:
    """The base of App that has `table` and `timers`."""

    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: type[V] | Codec[V],
        default: Callable[[], V] | None = None,
        route: Callable[[K], Any] | None = None,
        local: bool = False,
        expire: timedelta | None = None,
        upgrade: Callable[[Any], V] | None = None,
        alias: str | None = None,
    ) -> TableDef[K, V]: ...
    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: object,
        expire: timedelta | None = None,
        **options: Unpack[Options],
    ) -> TableDef[K, Any]: ...
    @overload
    def table(
        self, name: str, *, key: object, value: object, expire: timedelta | None = None, **options: Unpack[Options]
    ) -> TableDef[Any, Any]: ...
    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: type[V] | Codec[V],
        window: Tumbling,
        **options: Unpack[WindowOptions],
    ) -> TumblingDef[K, V]: ...
    @overload
    def table(
        self, name: str, *, key: type[K] | Codec[K], value: object, window: Tumbling, **options: Unpack[WindowOptions]
    ) -> TumblingDef[K, Any]: ...
    @overload
    def table(
        self, name: str, *, key: object, value: object, window: Tumbling, **options: Unpack[WindowOptions]
    ) -> TumblingDef[Any, Any]: ...
    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: type[V] | Codec[V],
        window: Hopping | Sliding,
        **options: Unpack[WindowOptions],
    ) -> HoppingDef[K, V]: ...
    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: object,
        window: Hopping | Sliding,
        **options: Unpack[WindowOptions],
    ) -> HoppingDef[K, Any]: ...
    @overload
    def table(
        self, name: str, *, key: object, value: object, window: Hopping | Sliding, **options: Unpack[WindowOptions]
    ) -> HoppingDef[Any, Any]: ...
    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: type[V] | Codec[V],
        window: Session,
        **options: Unpack[WindowOptions],
    ) -> SessionDef[K, V]: ...
    @overload
    def table(
        self, name: str, *, key: type[K] | Codec[K], value: object, window: Session, **options: Unpack[WindowOptions]
    ) -> SessionDef[K, Any]: ...
    @overload
    def table(
        self, name: str, *, key: object, value: object, window: Session, **options: Unpack[WindowOptions]
    ) -> SessionDef[Any, Any]: ...
    def table(self, name: str, *, key: Any, value: Any, window: Any = None, **options: Any) -> Any:
        """Declare a table. `default` makes the value that `table[key]` gives for an absent key; `route` says which part
        of a key decides its task; `local` lets each task keep what keys it likes; `expire` drops a key that long after
        its last write (stream time); `upgrade` turns an older version's value into today's. `window` makes it a table of
        windows: `grace` is how late a record of a window may be, `retain` how long after its end a window is kept,
        `on_late` where later records go. Raises DefinitionError."""
        table: KeyedDef[Any]
        if window is None:
            for option in ("grace", "retain", "on_late"):
                if option in options:
                    raise DefinitionError(
                        f"table {name!r}: {option}= is for windows; give window= too, or leave it out"
                    )
            checked_options(f"table {name!r}", options, (*Options.__annotations__, "expire", "window"))
            table = TableDef(self._owner(), name, key, value, **options)
        else:
            kind = _kind_of(name, window)
            checked_options(
                f"table {name!r}", options, (*WindowOptions.__annotations__, "expire")
            )  # which is refused there
            table = kind(self._owner(), name, key, value, window=window, **options)
        self._add_stored(table)
        return table

    @overload
    def timers(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        route: Callable[[K], Any] | None = None,
        local: bool = False,
        alias: str | None = None,
    ) -> TimersDef[K]: ...
    @overload
    def timers(
        self,
        name: str,
        *,
        key: object,
        route: Callable[[Any], Any] | None = None,
        local: bool = False,
        alias: str | None = None,
    ) -> TimersDef[Any]: ...
    def timers(self, name: str, *, key: Any, **options: Any) -> Any:
        """Declare timers: a mapping from key to due time in ms, in event time. `@app.when_due(...)` is called with each that
        comes due. `route` and `local` are those of a table. Raises DefinitionError."""
        checked_options(f"timers {name!r}", options, ("route", "local", "alias"))
        timers: TimersDef[Any] = TimersDef(self._owner(), name, key, **options)
        self._add_stored(timers)
        return timers

    def table_of(
        self, topic: Topic[K, V], *, versions: timedelta | None = None, alias: str | None = None
    ) -> TopicTableDef[K, V]:
        """Declare a topic as a table: the last value of each key, of the task's own partition, for reading. `versions`: how
        far back it can be read as of a time. The parameter has the topic's name. Raises DefinitionError."""
        table: TopicTableDef[K, V] = TopicTableDef(self._owner(), topic, versions=versions, alias=alias)
        self._add_stored(table)
        return table

    def global_table(self, topic: Topic[K, V], *, alias: str | None = None) -> GlobalTableDef[K, V]:
        """Declare a topic as a table that is whole on every instance, whatever its partitions, for reading. Its records
        belong to no task. Raises DefinitionError."""
        table: GlobalTableDef[K, V] = GlobalTableDef(self._owner(), topic, alias=alias)
        self._add_global(table)
        return table

    def _add_global(self, item: GlobalTableDef[Any, Any]) -> None:
        raise NotImplementedError

    def _owner(self) -> Any:
        return self

    def _add_stored(self, item: Declared[Any]) -> None:
        raise NotImplementedError


def _kind_of(name: str, window: Any) -> type[WindowedDef[Any]]:
    kinds: dict[type[Any], type[WindowedDef[Any]]] = {
        Tumbling: TumblingDef,
        Hopping: HoppingDef,
        Sliding: HoppingDef,
        Session: SessionDef,
    }
    found = kinds.get(type(window))
    if found is None:
        ways = ", ".join(f"{kind.__name__}(...)" for kind in kinds)
        raise DefinitionError(f"table {name!r}: window={window!r} is none of {ways}")
    return found
