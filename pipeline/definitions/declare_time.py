"""How what comes due and what closes is declared, for type checkers: `when_due`, `when_closed`.

One rule: the checker sees from the declaration what the function must take, as for `processor` (`pipeline.definitions.declare_processor`). The
overloads go up to five declared things; more are checked when the module is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, overload

from pipeline.definitions.declare_processor import Name, Wait
from pipeline.definitions.definition import Declared
from pipeline.definitions.error_policy import OnError
from pipeline.definitions.timed import HoppingDef, SessionDef, TimedDef, TimersDef, TumblingDef
from pipeline.time.tables import ClosedWindow, Due

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R", bound=Awaitable[None] | None)
F = TypeVar("F", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """Options of any function's calls."""

    alias: Name
    on_error: OnError | None
    timeout: Wait
    retries: int
    backoff: Wait


class DeclaresTime:
    """The base of App that has what goes by event time."""

    @overload
    def when_due(
        self, timers: TimersDef[K], /, **options: Unpack[Options]
    ) -> Callable[[Callable[[Due[K]], R]], Callable[[Due[K]], R]]: ...
    @overload
    def when_due(
        self, timers: TimersDef[K], a: Declared[A], /, **options: Unpack[Options]
    ) -> Callable[[Callable[[Due[K], A], R]], Callable[[Due[K], A], R]]: ...
    @overload
    def when_due(
        self, timers: TimersDef[K], a: Declared[A], b: Declared[B], /, **options: Unpack[Options]
    ) -> Callable[[Callable[[Due[K], A, B], R]], Callable[[Due[K], A, B], R]]: ...
    @overload
    def when_due(
        self, timers: TimersDef[K], a: Declared[A], b: Declared[B], c: Declared[C], /, **options: Unpack[Options]
    ) -> Callable[[Callable[[Due[K], A, B, C], R]], Callable[[Due[K], A, B, C], R]]: ...
    @overload
    def when_due(
        self,
        timers: TimersDef[K],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[Due[K], A, B, C, D], R]], Callable[[Due[K], A, B, C, D], R]]: ...
    @overload
    def when_due(
        self,
        timers: TimersDef[K],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[Due[K], A, B, C, D, E], R]], Callable[[Due[K], A, B, C, D, E], R]]: ...
    @overload
    def when_due(
        self, timers: TimersDef[Any], /, *others: Declared[Any], **options: Unpack[Options]
    ) -> Callable[[F], F]: ...
    def when_due(
        self,
        timers: Any,
        /,
        *others: Any,
        alias: Name = None,
        on_error: Any = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Any:
        """Declare a function that is called for each timer that comes due, with a `Due` (key, timestamp_ms); it may be
        declared on the same timers again, to set them anew. Raises DefinitionError."""
        options = Options(alias=alias, on_error=on_error, timeout=timeout, retries=retries, backoff=backoff)

        def declare(function: F) -> F:
            self._add_due("when_due", function, timers, others, options)
            return function

        return declare

    @overload
    def when_closed(
        self,
        table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[ClosedWindow[K, V]], R]], Callable[[ClosedWindow[K, V]], R]]: ...
    @overload
    def when_closed(
        self,
        table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V],
        a: Declared[A],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[ClosedWindow[K, V], A], R]], Callable[[ClosedWindow[K, V], A], R]]: ...
    @overload
    def when_closed(
        self,
        table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V],
        a: Declared[A],
        b: Declared[B],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[ClosedWindow[K, V], A, B], R]], Callable[[ClosedWindow[K, V], A, B], R]]: ...
    @overload
    def when_closed(
        self,
        table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[ClosedWindow[K, V], A, B, C], R]], Callable[[ClosedWindow[K, V], A, B, C], R]]: ...
    @overload
    def when_closed(
        self,
        table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        /,
        **options: Unpack[Options],
    ) -> Callable[[Callable[[ClosedWindow[K, V], A, B, C, D], R]], Callable[[ClosedWindow[K, V], A, B, C, D], R]]: ...
    @overload
    def when_closed(
        self,
        table: TumblingDef[K, V] | HoppingDef[K, V] | SessionDef[K, V],
        a: Declared[A],
        b: Declared[B],
        c: Declared[C],
        d: Declared[D],
        e: Declared[E],
        /,
        **options: Unpack[Options],
    ) -> Callable[
        [Callable[[ClosedWindow[K, V], A, B, C, D, E], R]], Callable[[ClosedWindow[K, V], A, B, C, D, E], R]
    ]: ...
    @overload
    def when_closed(
        self, table: TimedDef[Any], /, *others: Declared[Any], **options: Unpack[Options]
    ) -> Callable[[F], F]: ...
    def when_closed(
        self,
        table: Any,
        /,
        *others: Any,
        alias: Name = None,
        on_error: Any = None,
        timeout: Wait = None,
        retries: int = 0,
        backoff: Wait = None,
    ) -> Any:
        """Declare a function that is called once for each key of a window or session that closes, with a `ClosedWindow`
        (key, value, start_ms, end_ms). Raises DefinitionError."""
        options = Options(alias=alias, on_error=on_error, timeout=timeout, retries=retries, backoff=backoff)

        def declare(function: F) -> F:
            self._add_due("when_closed", function, table, others, options)
            return function

        return declare

    def _add_due(
        self, what: str, function: Callable[..., Any], timed: Any, others: Sequence[Any], options: Options
    ) -> None:
        raise NotImplementedError
