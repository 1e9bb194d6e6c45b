"""How a processor is declared, for type checkers: `@app.processor(source, *tables_sinks_resources)`.

One rule: the checker sees from the declaration what the function must take, so swapped or wrong parameters are found
before anything runs. The overloads say, for up to five declared things, that a topic gives a Sink, a table a Table
and a resource what it makes; more, or sources of several types, are checked when the module is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from pipeline.columns.public import Columns
from pipeline.definitions.definition import ByArrays, Declared, Topic
from pipeline.definitions.error_policy import OnError
from pipeline.errors import DefinitionError
from pipeline.records import Record

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R", bound=Awaitable[None] | None)
F = TypeVar("F", bound=Callable[..., Any])

Source = Topic[K, V] | Sequence[Topic[K, V]]
Name = Mapping[Any, str] | None
Wait = timedelta | float | None


class ColumnOptions(TypedDict, total=False):
    """Options of a processor that takes columns."""

    alias: Name
    on_error: OnError | None
    timeout: Wait
    retries: int
    backoff: Wait


class Declares:
    """The base of App that has `processor`."""

    @overload
    def processor(
        self,
        source: Source[K, V],
        /,
        *,
        batch: Literal[False] = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Record[K, V]], R]], Callable[[Record[K, V]], R]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: Declared[A],
        /,
        *,
        batch: Literal[False] = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Record[K, V], A], R]], Callable[[Record[K, V], A], R]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        batch: Literal[False] = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Record[K, V], A, B], R]], Callable[[Record[K, V], A, B], R]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        batch: Literal[False] = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Record[K, V], A, B, C], R]], Callable[[Record[K, V], A, B, C], R]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        batch: Literal[False] = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Record[K, V], A, B, C, D], R]], Callable[[Record[K, V], A, B, C, D], R]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        batch: Literal[False] = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Record[K, V], A, B, C, D, E], R]], Callable[[Record[K, V], A, B, C, D, E], R]]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        /,
        *,
        batch: Literal[True],
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Sequence[Record[K, V]]], R]], Callable[[Sequence[Record[K, V]]], R]]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        a: Declared[A],
        /,
        *,
        batch: Literal[True],
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Sequence[Record[K, V]], A], R]], Callable[[Sequence[Record[K, V]], A], R]]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        batch: Literal[True],
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Sequence[Record[K, V]], A, B], R]], Callable[[Sequence[Record[K, V]], A, B], R]]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        batch: Literal[True],
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[Callable[[Sequence[Record[K, V]], A, B, C], R]], Callable[[Sequence[Record[K, V]], A, B, C], R]]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        batch: Literal[True],
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[
        [Callable[[Sequence[Record[K, V]], A, B, C, D], R]], Callable[[Sequence[Record[K, V]], A, B, C, D], R]
    ]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        batch: Literal[True],
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[
        [Callable[[Sequence[Record[K, V]], A, B, C, D, E], R]], Callable[[Sequence[Record[K, V]], A, B, C, D, E], R]
    ]: ...
    @overload
    def processor(  # type: ignore[overload-overlap]
        self,
        source: Source[K, V],
        /,
        *,
        columns: Literal[True],
        **options: Unpack[ColumnOptions],
    ) -> Callable[[Callable[[Columns[K, V]], None]], Callable[[Columns[K, V]], None]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: ByArrays[A],
        /,
        *,
        columns: Literal[True],
        **options: Unpack[ColumnOptions],
    ) -> Callable[[Callable[[Columns[K, V], A], None]], Callable[[Columns[K, V], A], None]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: ByArrays[A],
        b: ByArrays[B],
        /,
        *,
        columns: Literal[True],
        **options: Unpack[ColumnOptions],
    ) -> Callable[[Callable[[Columns[K, V], A, B], None]], Callable[[Columns[K, V], A, B], None]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: ByArrays[A],
        b: ByArrays[B],
        c: ByArrays[C],
        /,
        *,
        columns: Literal[True],
        **options: Unpack[ColumnOptions],
    ) -> Callable[[Callable[[Columns[K, V], A, B, C], None]], Callable[[Columns[K, V], A, B, C], None]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: ByArrays[A],
        b: ByArrays[B],
        c: ByArrays[C],
        d: ByArrays[D],
        /,
        *,
        columns: Literal[True],
        **options: Unpack[ColumnOptions],
    ) -> Callable[[Callable[[Columns[K, V], A, B, C, D], None]], Callable[[Columns[K, V], A, B, C, D], None]]: ...
    @overload
    def processor(
        self,
        source: Source[K, V],
        a: ByArrays[A],
        b: ByArrays[B],
        c: ByArrays[C],
        d: ByArrays[D],
        e: ByArrays[E],
        /,
        *,
        columns: Literal[True],
        **options: Unpack[ColumnOptions],
    ) -> Callable[[Callable[[Columns[K, V], A, B, C, D, E], None]], Callable[[Columns[K, V], A, B, C, D, E], None]]: ...
    @overload
    def processor(
        self,
        source: Topic[Any, Any] | Sequence[Topic[Any, Any]],
        /,
        *others: Declared[Any],
        batch: bool = False,
        columns: bool = False,
        alias: Name = None,
        on_error: OnError | None = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Callable[[F], F]: ...
    def processor(
        self,
        source: Any,
        /,
        *others: Any,
        batch: bool = False,
        columns: bool = False,
        alias: Name = None,
        on_error: Any = None,
        timeout: Wait = None,
        concurrency: int = 1,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Any:
        """Declare a function as a processor of `source` (a topic or a list of topics); returns it unchanged.
        `batch`: it takes the records of a call; `columns`: as an Arrow table, and its tables by arrays.
        `concurrency`: so many calls of a task may be under way at once, those of one key in order. `retries`: a call
        that raised is made again so often, `backoff` seconds later, twice as long each time, up to a minute; then
        `on_error` decides. Raises DefinitionError."""
        if callable(source) and not isinstance(source, Declared):  # it would vanish without an error
            name = getattr(source, "__name__", repr(source))
            raise DefinitionError(f"@app.processor above {name} has no source; write @app.processor(topic, ...)")

        def declare(function: F) -> F:
            self._add_processor(
                function,
                source,
                others,
                batch=batch,
                columns=columns,
                alias=alias,
                on_error=on_error,
                timeout=timeout,
                concurrency=concurrency,
                retries=retries,
                backoff=backoff,
            )
            return function

        return declare

    def _add_processor(
        self,
        function: Callable[..., Any],
        source: Any,
        others: Sequence[Any],
        *,
        batch: bool,
        columns: bool,
        alias: Name,
        on_error: Any,
        timeout: Wait,
        concurrency: int,
        retries: int,
        backoff: Wait,
    ) -> None:
        raise NotImplementedError
