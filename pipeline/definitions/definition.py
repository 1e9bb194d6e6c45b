"""Topics, tables and resources as an app declares them. One rule: a definition is never the data.

A definition belongs to one App, has a name, and knows the codecs; the argument that a processor gets in its place is
made by `process` (or by `fake()` for a test of the function alone). Using the definition itself as data raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, overload

from pipeline.columns.public import ColumnTable
from pipeline.definitions.options import checked_alias, checked_local, checked_partitions
from pipeline.errors import CodecError, DefinitionError, DefinitionUsed
from pipeline.records import Record
from pipeline.sinks import FakeSink, Sink, checked_headers
from pipeline.tables.expiring_view import ExpiringView
from pipeline.tables.observed import ObservedTable
from pipeline.tables.table import StoreView, Table, TableSpec, stored_pairs
from pipeline.tables.view import TableView
from pipeline.time.durations import duration_ms
from pipeline.time.event_time import EventTime
from pipeline.time.position import Position
from pipeline.values.codecs import Codec, JsonCodec, codec_for, encode_natural, hashable_values, type_name

A_co = TypeVar("A_co", covariant=True)
K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

Start = Literal["beginning", "end", "fail"]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_DATA_NAMES = frozenset(
    (*dir(dict), *dir(list), *dir(Table), *dir(ColumnTable), "send", "add", "at", "window", "as_of")
)


def checked_name(what: str, name: object) -> str:
    """A name that Kafka takes for a topic and a file system for a folder. Raises DefinitionError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise DefinitionError(
            f"{what}: {name!r} is no name; use letters, digits, '.', '_' and '-', at most 200 of them"
        )
    return name


class Owner(Protocol):
    """The app of a definition, as the definition knows it: whose names its topics begin with, and where a re-key goes."""

    @property
    def id(self) -> str: ...

    def add_rekey(
        self, source: Topic[Any, Any], target: Topic[Any, Any], by: Callable[..., Any], on_error: Any = None
    ) -> None:
        """Register what `topic.rekey()` declares. Raises DefinitionError."""


class Declared(Generic[A_co]):
    """Whatever can be declared on a processor; A is what the function gets in its place."""

    kind: ClassVar[str] = "definition"

    def __init__(self, app: Owner, name: str, alias: str | None) -> None:
        self.app = app
        self.name = checked_name(self.kind, name)
        self.alias = checked_alias(f"{self.kind} {name!r}", alias)

    @property
    def parameter(self) -> str:
        """The name of the function's parameter."""
        return self.alias or re.sub(r"[.-]", "_", self.name)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} of app {self.app.id!r}>"

    def _used(self) -> DefinitionUsed:
        return DefinitionUsed(
            f"{self.kind} {self.name!r} is a definition; declare it on the processor and use the argument"
        )

    if not TYPE_CHECKING:  # a type checker says the same already: there are no such methods

        def _raise(self, *args, **kwargs):
            raise self._used()

        __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = __call__ = _raise
        __or__ = __ior__ = __reversed__ = __iadd__ = _raise

        __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __lt__ = __le__ = __gt__ = __ge__ = _raise

        def __bool__(self):
            return True

        def _is_of_data(self, name):
            return name in _DATA_NAMES

        def __getattr__(self, name):
            if self._is_of_data(name) and not name.startswith("_"):
                raise self._used()
            raise AttributeError(f"{self.kind} {self.name!r} has no attribute {name!r}")

        def __eq__(self, other):
            if isinstance(other, dict | list):
                raise self._used()
            return self is other

        __hash__ = object.__hash__


class ByArrays(Generic[A_co]):
    """What can be declared on a processor with `columns=True`; A is what the function gets in its place."""


class Topic(Declared[Sink[K, V]], ByArrays[Sink[K, V]]):
    """A topic: a source of processors, or the sink of some."""

    kind = "topic"

    def __init__(
        self,
        app: Owner,
        name: str,
        key: Any,
        value: Any,
        *,
        partitions: int | None = None,
        start: Start = "beginning",
        alias: str | None = None,
        rekeyed_from: Topic[Any, Any] | None = None,
        timestamp: Callable[[Any], int] | None = None,
        max_ahead: timedelta | None = None,
        retention: timedelta | None = None,
        retention_bytes: int | None = None,
        is_between: bool = False,
    ) -> None:
        super().__init__(app, name, alias)
        what = f"topic {name!r}"
        self.key_codec: Codec[K] = codec_for(key, what=f"{what}, key", key=True)
        self.value_codec: Codec[V] = codec_for(value, what=f"{what}, value")
        self.partitions = None if partitions is None else checked_partitions(what, partitions)
        if start not in ("beginning", "end", "fail"):
            raise DefinitionError(f'{what}: start={start!r} is not one of "beginning", "end", "fail"')
        self.start = start
        self.retention_ms = None if retention is None else duration_ms(what, "retention", retention, least_ms=1)
        if retention_bytes is not None and not (type(retention_bytes) is int and retention_bytes > 0):
            raise DefinitionError(f"{what}: retention_bytes={retention_bytes!r} is not a number of bytes above 0")
        self.retention_bytes = retention_bytes
        self.event_time = EventTime(name, self.value_codec, timestamp, max_ahead)
        self.rekeyed_from = rekeyed_from
        self.is_between = (
            is_between or rekeyed_from is not None
        )  # of the app's own tasks: a re-key, or a join's messages

    @property
    def topic(self) -> str:
        """Its name in the log."""
        return f"{self.app.id}-{self.name}-repartition" if self.is_between else self.name

    def record(
        self,
        key: K,
        value: V,
        *,
        timestamp_ms: int = 0,
        headers: Iterable[tuple[str, bytes]] = (),
        partition: int = 0,
        offset: int = 0,
    ) -> Record[K, V]:
        """A record of this topic, for a test of a function alone."""
        checked = checked_headers(self.name, headers)
        return Record(key, value, timestamp_ms, checked, self.topic, partition, offset)

    def fake(self) -> FakeSink[K, V]:
        """A list with `send`, for a test of a function alone."""
        return FakeSink(self.name, self.key_codec, self.value_codec)

    @overload
    def rekey(
        self,
        name: str,
        *,
        key: type[K2] | Codec[K2],
        by: Callable[[Record[K, V]], K2 | None],
        value: None = None,
        partitions: int | None = None,
        alias: str | None = None,
        on_error: str | Topic[Any, Any] | Mapping[type[Exception], Any] | None = None,
    ) -> Topic[K2, V]: ...
    @overload
    def rekey(
        self,
        name: str,
        *,
        key: type[K2] | Codec[K2],
        by: Callable[[Record[K, V]], K2 | None],
        value: type[V2] | Codec[V2],
        partitions: int | None = None,
        alias: str | None = None,
        on_error: str | Topic[Any, Any] | Mapping[type[Exception], Any] | None = None,
    ) -> Topic[K2, V2]: ...
    @overload
    def rekey(
        self,
        name: str,
        *,
        key: type[K2] | Codec[K2],
        by: Callable[[Record[K, V]], K2 | None],
        value: object,
        partitions: int | None = None,
        alias: str | None = None,
        on_error: str | Topic[Any, Any] | Mapping[type[Exception], Any] | None = None,
    ) -> Topic[K2, Any]: ...
    def rekey(
        self,
        name: str,
        *,
        key: Any,
        by: Callable[[Record[K, V]], Any],
        value: Any = None,
        partitions: int | None = None,
        alias: str | None = None,
        on_error: str | Topic[Any, Any] | Mapping[type[Exception], Any] | None = None,
    ) -> Topic[Any, Any]:
        """The same records under another key, through the topic `<app>-<name>-repartition`; a key None drops one."""
        target: Topic[Any, Any] = Topic(
            self.app,
            name,
            key,
            self.value_codec if value is None else value,
            partitions=partitions,
            alias=alias,
            rekeyed_from=self,
        )
        self.app.add_rekey(self, target, by, on_error)
        return target


class Stored(Declared[A_co]):
    """Whatever each task keeps in a store and the changelog `<app>-<name>-changelog`. `order` is that of declaration."""

    key_codec: Codec[Any]
    value_codec: Codec[Any]
    spec: TableSpec
    route: Callable[[Any], Any] | None = None
    local: bool = False
    order = 0
    is_joined = False  # a join of tables is called for each change of it
    keeps_time: ClassVar[bool] = False  # its windows close, its timers come due, or its join records are over
    in_order: ClassVar[bool] = False  # see is_ordered

    @property
    def is_ordered(self) -> bool:
        """Whether the calls of a task that has it are one at a time, and those of a record count together."""
        return self.in_order or self.is_joined

    @property
    def changelog(self) -> str:
        """The topic that holds every write."""
        return f"{self.app.id}-{self.name}-changelog"

    @property
    def source(self) -> Topic[Any, Any] | None:
        """The topic whose records write it, where it is the table of one."""
        return None

    def view(
        self, store: StoreView, check_owner: Callable[[Any, bytes], None] | None, position: Position, *, announces: bool
    ) -> TableView[Any, Any]:
        """The table of a task. `announces`: a function is called for what closes or comes due."""
        return TableView(self.spec, store, check_owner)

    def pairs(self, store: StoreView) -> Iterator[tuple[Any, Any]]:
        """What a settled store holds of it, decoded, as the Driver and tools show it."""
        return stored_pairs(self.spec, store)

    def described(self) -> dict[str, Any]:
        """The form of what is stored, as JSON-able data."""
        return {"kind": "table"}

    def partition_key(self, key: Any, codec: Codec[Any] | None = None) -> bytes:
        """The bytes whose partition is the task of `key`. `codec` stands in where a source has one of the user's."""
        routed = key if self.route is None else self.route(key)
        if codec is not None:
            return codec.encode(routed)
        return self.spec.encode_key(key) if self.route is None else encode_natural(routed)


class KeyedDef(Stored[A_co]):
    """A table of the user's: typed keys and values, and whose task a key belongs to. Raises DefinitionError."""

    kind = "table"

    def __init__(
        self,
        app: Owner,
        name: str,
        key: Any,
        value: Any,
        *,
        default: Callable[[], Any] | None = None,
        route: Callable[[Any], Any] | None = None,
        local: bool = False,
        expire: timedelta | None = None,
        upgrade: Callable[[Any], Any] | None = None,
        alias: str | None = None,
    ) -> None:
        super().__init__(app, name, alias)
        what = f"{self.kind} {name!r}"
        self.key_codec = codec_for(key, what=f"{what}, key", key=True)
        self.value_codec = codec_for(value, what=f"{what}, value")
        if isinstance(self.key_codec, JsonCodec) and not hashable_values(key):
            raise DefinitionError(
                f"{what}, key: {type_name(key)} cannot be the key of a dict; use frozen=True or a tuple, also inside"
            )
        for option, function in {"default": default, "route": route, "upgrade": upgrade}.items():
            if function is not None and not callable(function):
                raise DefinitionError(
                    f"{what}: {option}={function!r} is not a function; write {option}=lambda ...: ..."
                )
        self.route = route
        self.local = checked_local(what, local, route)
        self.spec = TableSpec(
            name=name,
            key_codec=self.key_codec,
            value_codec=self.value_codec,
            default=default,
            expire_ms=None if expire is None else _milliseconds(what, expire),
            upgrade=upgrade,
            none_is_value=_reads_null(self.value_codec),
        )
        if default is not None:
            self._check_default(default)

    def _check_default(self, default: Callable[[], Any]) -> None:
        """A default that is no value of the table would only be noticed at the first absent key."""
        try:
            self.spec.encode_value(default())
        except (CodecError, TypeError) as error:
            raise DefinitionError(
                f"table {self.name!r}: default={default!r} does not make one of its values: {error}"
            ) from None


class TableDef(KeyedDef[Table[K, V]], ByArrays[ColumnTable[K, V]]):
    """A table: a dict of each task."""

    def view(
        self, store: StoreView, check_owner: Callable[[Any, bytes], None] | None, position: Position, *, announces: bool
    ) -> TableView[Any, Any]:
        kind = ObservedTable if self.is_joined else TableView if self.spec.expire_ms is None else ExpiringView
        return kind(self.spec, store, check_owner)

    def fake(self) -> Table[K, V]:
        """A dict with the default, for a test of a function alone."""
        return TableView(self.spec, Empty())


class Resource(Declared[A_co], ByArrays[A_co]):
    """A client, a model or a pool: made once per worker by `factory`, see `resources`."""

    kind = "resource"

    def __init__(self, app: Owner, name: str, factory: Callable[[], Any], alias: str | None = None) -> None:
        super().__init__(app, name, alias)
        self.factory = factory

    def _is_of_data(self, name: str) -> bool:
        """What it makes may have any attribute."""
        return True


class Empty:
    """A store with nothing in it."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def range(self, start: bytes | None, stop: bytes | None) -> Iterable[tuple[bytes, bytes]]:
        return ()


def aliases(given: Mapping[Any, str] | None) -> dict[str, str]:
    """`alias=` of a processor by name, whether definitions or their names were given."""
    return {item.name if isinstance(item, Declared) else str(item): name for item, name in (given or {}).items()}


def _milliseconds(what: str, duration: timedelta) -> int:
    if not isinstance(duration, timedelta) or duration < timedelta(milliseconds=1):
        raise DefinitionError(f"{what}: expire={duration!r} is not a timedelta of at least a millisecond")
    return duration // timedelta(milliseconds=1)


def _reads_null(codec: Codec[Any]) -> bool:
    if not isinstance(codec, JsonCodec):
        return False
    try:
        return codec.decode(b"null") is None
    except CodecError:
        return False
