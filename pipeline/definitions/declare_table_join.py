"""How joins of tables are declared, for type checkers: `@app.table_join(left, right, *others, kind=...)`.

One rule: the checker sees from the declaration what the function must take, as for `processor` (`declare_processor`). The
overloads go up to five declared things; more are checked when the module is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from pipeline.definitions.declare_processor import Name, Wait
from pipeline.definitions.declare_time import Options
from pipeline.definitions.definition import Declared, TableDef, Topic
from pipeline.definitions.table_join import Kind
from pipeline.definitions.topic_tables import TopicTableDef
from pipeline.records import Record

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R", bound=Awaitable[None] | None)
F = TypeVar("F", bound=Callable[..., Any])

Side = TopicTableDef[K, V] | TableDef[K, V] | Topic[K, V]


class DeclaresTableJoins:
    """The base of App that has `table_join`."""

    @overload
    def table_join(
        self,
        left: Side[K, V],
        right: Side[K, W],
        /,
        *,
        kind: Literal["inner", "left"] = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None], R]], Callable[[Record[K, V], Record[K, W] | None], R]
    ]: ...
    @overload
    def table_join(
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        /,
        *,
        kind: Literal["inner", "left"] = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A], R]], Callable[[Record[K, V], Record[K, W] | None, A], R]
    ]: ...
    @overload
    def table_join(
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        kind: Literal["inner", "left"] = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B], R]], Callable[[Record[K, V], Record[K, W] | None, A, B], R]
    ]: ...
    @overload
    def table_join(
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        kind: Literal["inner", "left"] = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B, C], R]],
        Callable[[Record[K, V], Record[K, W] | None, A, B, C], R],
    ]: ...
    @overload
    def table_join(
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        kind: Literal["inner", "left"] = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B, C, D], R]],
        Callable[[Record[K, V], Record[K, W] | None, A, B, C, D], R],
    ]: ...
    @overload
    def table_join(
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        kind: Literal["inner", "left"] = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B, C, D, E], R]],
        Callable[[Record[K, V], Record[K, W] | None, A, B, C, D, E], R],
    ]: ...
    @overload
    def table_join(  # type: ignore[overload-overlap]
        self,
        left: Side[K, V],
        right: Side[K, W],
        /,
        *,
        kind: Literal["outer"],
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None], R],
    ]: ...
    @overload
    def table_join(  # type: ignore[overload-overlap]
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        /,
        *,
        kind: Literal["outer"],
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A], R],
    ]: ...
    @overload
    def table_join(  # type: ignore[overload-overlap]
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        kind: Literal["outer"],
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B], R],
    ]: ...
    @overload
    def table_join(  # type: ignore[overload-overlap]
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        kind: Literal["outer"],
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C], R],
    ]: ...
    @overload
    def table_join(  # type: ignore[overload-overlap]
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        kind: Literal["outer"],
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D], R],
    ]: ...
    @overload
    def table_join(  # type: ignore[overload-overlap]
        self,
        left: Side[K, V],
        right: Side[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        kind: Literal["outer"],
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D, E], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D, E], R],
    ]: ...
    @overload
    def table_join(
        self,
        left: Side[Any, Any],
        right: Side[Any, Any],
        /,
        *others: Declared[Any],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[[F], F]: ...
    def table_join(
        self,
        left: Any,
        right: Any,
        /,
        *others: Any,
        kind: Any = "inner",
        alias: Name = None,
        on_error: Any = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Any:
        """Declare a function that is called with the rows of two tables that have one key, for each change of either: with
        a record of each. `kind="left"` calls it with None where the right table has none, "outer" where either has none. A
        result that is no more is taken back: the first record has the key and no value, the second is None. Raises
        DefinitionError."""

        options = Options(alias=alias, on_error=on_error, timeout=timeout, retries=retries, backoff=backoff)

        def declare(function: F) -> F:
            self._add_table_join(function, left, right, others, options, kind=kind)
            return function

        return declare

    def _add_table_join(
        self, function: Callable[..., Any], left: Any, right: Any, others: Sequence[Any], options: Options, *, kind: Any
    ) -> None:
        raise NotImplementedError
