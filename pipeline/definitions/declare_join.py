"""How a stream join is declared, for type checkers: `@app.join(left, right, *others, within=..., kind=...)`.

One rule: the kind decides which of the two records may be None, and the type checker enforces it (`pipeline.definitions.declare_processor` for the
rest). The overloads go up to five declared things; more are checked when the module is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar, Unpack, overload

from pipeline.definitions.declare_processor import Name, Wait
from pipeline.definitions.declare_time import Options
from pipeline.definitions.definition import Declared, Topic
from pipeline.definitions.join import Kind, Within
from pipeline.definitions.timed import OnLate
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

_ZERO = timedelta(0)


class JoinOptions(Options, total=False):
    """Options of a join's calls."""

    grace: timedelta
    on_late: OnLate


class DeclaresJoins:
    """The base of App that has `join`."""

    @overload
    def join(
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        /,
        *,
        within: Within,
        kind: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[[Callable[[Record[K, V], Record[K, W]], R]], Callable[[Record[K, V], Record[K, W]], R]]: ...
    @overload
    def join(
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        /,
        *,
        within: Within,
        kind: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[[Callable[[Record[K, V], Record[K, W], A], R]], Callable[[Record[K, V], Record[K, W], A], R]]: ...
    @overload
    def join(
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        within: Within,
        kind: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W], A, B], R]], Callable[[Record[K, V], Record[K, W], A, B], R]
    ]: ...
    @overload
    def join(
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        within: Within,
        kind: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W], A, B, C], R]], Callable[[Record[K, V], Record[K, W], A, B, C], R]
    ]: ...
    @overload
    def join(
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        within: Within,
        kind: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W], A, B, C, D], R]], Callable[[Record[K, V], Record[K, W], A, B, C, D], R]
    ]: ...
    @overload
    def join(
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        within: Within,
        kind: Literal["inner"] = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W], A, B, C, D, E], R]],
        Callable[[Record[K, V], Record[K, W], A, B, C, D, E], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        /,
        *,
        within: Within,
        kind: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None], R]], Callable[[Record[K, V], Record[K, W] | None], R]
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        /,
        *,
        within: Within,
        kind: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A], R]], Callable[[Record[K, V], Record[K, W] | None, A], R]
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        within: Within,
        kind: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B], R]], Callable[[Record[K, V], Record[K, W] | None, A, B], R]
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        within: Within,
        kind: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B, C], R]],
        Callable[[Record[K, V], Record[K, W] | None, A, B, C], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        within: Within,
        kind: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B, C, D], R]],
        Callable[[Record[K, V], Record[K, W] | None, A, B, C, D], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        within: Within,
        kind: Literal["left"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V], Record[K, W] | None, A, B, C, D, E], R]],
        Callable[[Record[K, V], Record[K, W] | None, A, B, C, D, E], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        /,
        *,
        within: Within,
        kind: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        /,
        *,
        within: Within,
        kind: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        /,
        *,
        within: Within,
        kind: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        *,
        within: Within,
        kind: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        *,
        within: Within,
        kind: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D], R],
    ]: ...
    @overload
    def join(  # type: ignore[overload-overlap]
        self,
        left: Topic[K, V],
        right: Topic[K, W],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        *,
        within: Within,
        kind: Literal["outer"],
        **options: Unpack[JoinOptions],
    ) -> Callable[
        [Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D, E], R]],
        Callable[[Record[K, V] | None, Record[K, W] | None, A, B, C, D, E], R],
    ]: ...
    @overload
    def join(
        self,
        left: Topic[Any, Any],
        right: Topic[Any, Any],
        /,
        *others: Declared[Any],
        within: Within,
        kind: Kind = "inner",
        **options: Unpack[JoinOptions],
    ) -> Callable[[F], F]: ...
    def join(
        self,
        left: Any,
        right: Any,
        /,
        *others: Any,
        within: Any,
        kind: Any = "inner",
        grace: timedelta = _ZERO,
        on_late: Any = "drop",
        alias: Name = None,
        on_error: Any = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Any:
        """Declare a function that is called with each pair of records of two topics that have one key and times within
        `within` of each other: both ways, or (before, after): right matches left from left - before to left + after.
        `kind="left"` calls it with None for a left record that nothing matched, "outer" for right ones too, when they are
        over. Raises DefinitionError."""
        options = Options(alias=alias, on_error=on_error, timeout=timeout, retries=retries, backoff=backoff)

        def declare(function: F) -> F:
            self._add_join(
                function, left, right, others, options, within=within, kind=kind, grace=grace, on_late=on_late
            )
            return function

        return declare

    def _add_join(
        self,
        function: Callable[..., Any],
        left: Any,
        right: Any,
        others: Sequence[Any],
        options: Options,
        *,
        within: Any,
        kind: Any,
        grace: Any,
        on_late: Any,
    ) -> None:
        raise NotImplementedError
