"""How joins by a foreign key are declared, for type checkers: `@app.foreign_key_join(left, right, *others, key=...)`.

One rule: the checker sees from the declaration what the function must take, as for `table_join`. The overloads go up to five
declared things; more are checked when the module is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from pipeline.definitions.declare_processor import Name, Wait
from pipeline.definitions.declare_table_join import Side
from pipeline.definitions.declare_time import Options
from pipeline.definitions.definition import Declared
from pipeline.definitions.foreign_key_join import Kind
from pipeline.records import Record

K = TypeVar("K")
V = TypeVar("V")
L = TypeVar("L")
W = TypeVar("W")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R", bound=Awaitable[None] | None)
F = TypeVar("F", bound=Callable[..., Any])


class DeclaresForeignKeyJoins:
    """The base of App that has `foreign_key_join`."""

    @overload
    def foreign_key_join(
        self,
        left: Side[K, V],
        right: Side[L, W],
        /,
        *,
        key: Callable[[V], L | None],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[L, W] | None], R]], Callable[[Record[K, V], Record[L, W] | None], R]
    ]: ...
    @overload
    def foreign_key_join(
        self,
        left: Side[K, V],
        right: Side[L, W],
        a: Declared[A],
        /,
        *,
        key: Callable[[V], L | None],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[L, W] | None, A], R]], Callable[[Record[K, V], Record[L, W] | None, A], R]
    ]: ...
    @overload
    def foreign_key_join(
        self,
        left: Side[K, V],
        right: Side[L, W],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        key: Callable[[V], L | None],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[L, W] | None, A, B], R]], Callable[[Record[K, V], Record[L, W] | None, A, B], R]
    ]: ...
    @overload
    def foreign_key_join(
        self,
        left: Side[K, V],
        right: Side[L, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        key: Callable[[V], L | None],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[L, W] | None, A, B, C], R]],
        Callable[[Record[K, V], Record[L, W] | None, A, B, C], R],
    ]: ...
    @overload
    def foreign_key_join(
        self,
        left: Side[K, V],
        right: Side[L, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        key: Callable[[V], L | None],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[L, W] | None, A, B, C, D], R]],
        Callable[[Record[K, V], Record[L, W] | None, A, B, C, D], R],
    ]: ...
    @overload
    def foreign_key_join(
        self,
        left: Side[K, V],
        right: Side[L, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        key: Callable[[V], L | None],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[Record[K, V], Record[L, W] | None, A, B, C, D, E], R]],
        Callable[[Record[K, V], Record[L, W] | None, A, B, C, D, E], R],
    ]: ...
    @overload
    def foreign_key_join(
        self,
        left: Side[Any, Any],
        right: Side[Any, Any],
        a: Declared[Any],
        b: Declared[Any],
        c: Declared[Any],
        d: Declared[Any],
        e: Declared[Any],
        f: Declared[Any],
        /,
        *others: Declared[Any],
        key: Callable[[Any], Any],
        kind: Kind = "inner",
        **options: Unpack[Options],
    ) -> Callable[[F], F]: ...
    def foreign_key_join(
        self,
        left: Any,
        right: Any,
        /,
        *others: Any,
        key: Any,
        kind: Any = "inner",
        alias: Name = None,
        on_error: Any = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Any:
        """Declare a function that is called with each row of the left table and the row of the right one whose key is
        `key(value of the left row)`, for each change of either: with a record of each. A key None is a row without a foreign
        key. `kind="left"` calls it with None where there is no right row. A result that is no more is taken back: the first
        record has the key and no value, the second is None. Raises DefinitionError."""
        options = Options(alias=alias, on_error=on_error, timeout=timeout, retries=retries, backoff=backoff)

        def declare(function: F) -> F:
            self._add_foreign_key_join(function, left, right, others, options, key=key, kind=kind)
            return function

        return declare

    def _add_foreign_key_join(
        self,
        function: Callable[..., Any],
        left: Any,
        right: Any,
        others: Sequence[Any],
        options: Options,
        *,
        key: Any,
        kind: Any,
    ) -> None:
        raise NotImplementedError
