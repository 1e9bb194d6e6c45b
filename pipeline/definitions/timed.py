"""Windowed tables, timers and joins as an app declares them. One rule: what cannot be meant is refused at import.

Each makes the view of a task (`view`), a dict for a test of a function alone (`fake`), and says what a settled store
holds of it (`pairs`). Declared with `app.table(..., window=...)`, `app.timers(...)` and `app.join(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeVar

from pipeline.definitions.definition import Declared, Empty, KeyedDef, Owner, Stored, Topic
from pipeline.definitions.options import checked_local
from pipeline.errors import DefinitionError
from pipeline.tables.table import StoreView, TableSpec
from pipeline.time.durations import checked_time, duration_ms
from pipeline.time.position import Position
from pipeline.time.session_tables import CalledSessionsView
from pipeline.time.sliding_view import SlidingView
from pipeline.time.tables import HoppingTable, SessionTable, Timers, TumblingTable
from pipeline.time.timed_view import CheckOwner, TimedView
from pipeline.time.timer_view import TimersView
from pipeline.time.window_tables import HoppingView, TumblingView
from pipeline.time.window_view import WindowsView
from pipeline.time.windows import FixedWindows, Hopping, Session, Sliding, Tumbling
from pipeline.values.codecs import JsonCodec, codec_for, hashable_values, type_name

A_co = TypeVar("A_co", covariant=True)
K = TypeVar("K")
V = TypeVar("V")
OnLate = Topic[Any, Any] | Literal["drop"]
DROP: Literal["drop"] = "drop"
_ZERO = timedelta(0)


def checked_on_late(app: Owner, what: str, on_late: Any) -> Topic[Any, Any] | None:
    """The topic that late records go to; None where they are dropped. Raises DefinitionError."""
    if isinstance(on_late, Topic):
        if on_late.app is not app:
            raise DefinitionError(
                f"{what}: on_late= is topic {on_late.name!r} of app {on_late.app.id!r}, not {app.id!r}"
            )
        if on_late.rekeyed_from is not None:
            raise DefinitionError(f"{what}: on_late= is the re-key {on_late.name!r}; give a topic of its own")
        return on_late
    if on_late != DROP:
        raise DefinitionError(f'{what}: on_late={on_late!r} is neither "drop" nor a topic of the app')
    return None


class TimedDef(Stored[A_co]):
    """What keeps time. `on_late`: where records go for which it has passed."""

    keeps_time: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    on_late: Topic[Any, Any] | None = None

    def pairs(self, store: StoreView) -> Iterator[tuple[Any, Any]]:
        position = Position()
        view = self.view(store, None, position, announces=False)
        assert isinstance(view, TimedView)
        return view.shown()


class WindowedDef(KeyedDef[A_co], TimedDef[A_co]):
    """A table with a dict for each window. `retain` counts from a window's end, `grace` is how late a record may be."""

    kind = "table"

    def __init__(
        self,
        app: Owner,
        name: str,
        key: Any,
        value: Any,
        *,
        window: Tumbling | Hopping | Sliding | Session,
        grace: timedelta = _ZERO,
        retain: timedelta | None = None,
        on_late: OnLate = DROP,
        **options: Any,
    ) -> None:
        if options.get("expire") is not None:
            raise DefinitionError(f"table {name!r}: its windows expire by retain=; leave expire= out")
        super().__init__(app, name, key, value, **options)
        what = f"table {name!r}"
        self.window_kind = window
        self.grace_ms = duration_ms(what, "grace", grace, least_ms=0)
        self.retain_ms = self.grace_ms if retain is None else duration_ms(what, "retain", retain, least_ms=0)
        if self.retain_ms < self.grace_ms:
            raise DefinitionError(
                f"{what}: retain={retain} is shorter than grace={grace}, in which a window can still be written"
            )
        self.on_late = checked_on_late(app, what, on_late)

    def described(self) -> dict[str, Any]:
        return self.window_kind.described()


class FixedDef(WindowedDef[A_co]):
    """Windows that follow from the time alone."""

    view_kind: ClassVar[type[WindowsView[Any, Any]]]

    def view(
        self, store: StoreView, check_owner: CheckOwner | None, position: Position, *, announces: bool
    ) -> WindowsView[Any, Any]:
        return self.view_of(self.view_kind, store, check_owner, position, announces=announces)

    def view_of(
        self,
        kind: type[WindowsView[Any, Any]],
        store: StoreView,
        check_owner: CheckOwner | None,
        position: Position,
        *,
        announces: bool,
    ) -> WindowsView[Any, Any]:
        """A view of this kind."""
        windows = self.window_kind
        assert isinstance(windows, Tumbling | Hopping | Sliding)
        fixed: FixedWindows = windows
        return kind(
            self.spec,
            store,
            position,
            self.order,
            check_owner,
            windows=fixed,
            grace_ms=self.grace_ms,
            retain_ms=self.retain_ms,
            announces=announces,
        )

    def _fake(self, timestamp_ms: int) -> WindowsView[Any, Any]:
        view = self.view(Empty(), None, Position(), announces=False)
        view.at_ms = checked_time(f"table {self.name!r}, fake", timestamp_ms)
        return view


class TumblingDef(FixedDef[TumblingTable[K, V]]):
    """Windows one after the other."""

    view_kind = TumblingView

    def fake(self, timestamp_ms: int = 0) -> TumblingTable[K, V]:
        """The window at a time as a dict, for a test of a function alone."""
        fake: TumblingTable[K, V] = self._fake(timestamp_ms).argument
        return fake


class HoppingDef(FixedDef[HoppingTable[K, V]]):
    """Windows that overlap: hopping or sliding."""

    view_kind = HoppingView

    def view(
        self, store: StoreView, check_owner: CheckOwner | None, position: Position, *, announces: bool
    ) -> WindowsView[Any, Any]:
        if isinstance(self.window_kind, Sliding):
            return self.view_of(SlidingView, store, check_owner, position, announces=announces)
        return super().view(store, check_owner, position, announces=announces)

    def fake(self, timestamp_ms: int = 0) -> HoppingTable[K, V]:
        """The windows at a time, for a test of a function alone."""
        fake: HoppingTable[K, V] = self._fake(timestamp_ms).argument
        return fake


class SessionDef(WindowedDef[SessionTable[K, V]]):
    """Sessions of each key."""

    def view(
        self, store: StoreView, check_owner: CheckOwner | None, position: Position, *, announces: bool
    ) -> CalledSessionsView[Any, Any]:
        windows = self.window_kind
        assert isinstance(windows, Session)
        return CalledSessionsView(
            self.spec,
            store,
            position,
            self.order,
            check_owner,
            windows=windows,
            grace_ms=self.grace_ms,
            retain_ms=self.retain_ms,
            announces=announces,
        )

    def fake(self, timestamp_ms: int = 0) -> SessionTable[K, V]:
        """The sessions at a time as a dict, for a test of a function alone."""
        view = self.view(Empty(), None, Position(), announces=False)
        view.at_ms = checked_time(f"table {self.name!r}, fake", timestamp_ms)
        return view.argument


class TimersDef(TimedDef[Timers[K]]):
    """Timers: a mapping from key to due time."""

    kind = "timers"

    def __init__(
        self,
        app: Owner,
        name: str,
        key: Any,
        *,
        route: Callable[[K], Any] | None = None,
        local: bool = False,
        alias: str | None = None,
    ) -> None:
        super().__init__(app, name, alias)
        what = f"timers {name!r}"
        self.key_codec = codec_for(key, what=f"{what}, key", key=True)
        self.value_codec = codec_for(int, what=f"{what}, value")
        if isinstance(self.key_codec, JsonCodec) and not hashable_values(key):
            raise DefinitionError(
                f"{what}, key: {type_name(key)} cannot be the key of a dict; use frozen=True or a tuple, also inside"
            )
        if route is not None and not callable(route):
            raise DefinitionError(f"{what}: route={route!r} is not a function; write route=lambda key: ...")
        self.route = route
        self.local = checked_local(what, local, route)
        self.spec = TableSpec(name=name, key_codec=self.key_codec, value_codec=self.value_codec)

    def view(
        self, store: StoreView, check_owner: CheckOwner | None, position: Position, *, announces: bool
    ) -> TimersView[Any]:
        return TimersView(self.spec, store, position, self.order, check_owner)

    def fake(self) -> Timers[K]:
        """A dict of due times, for a test of a function alone."""
        return self.view(Empty(), None, Position(), announces=False)

    def described(self) -> dict[str, Any]:
        return {"kind": "timers"}


def checked_timed(app: Owner, what: str, timed: Any) -> TimedDef[Any]:
    """What a function is called for: timers of `when_due`, windows of `when_closed`. Raises DefinitionError."""
    wanted, ways = (TimersDef, "app.timers(...)") if what == "when_due" else (WindowedDef, "app.table(..., window=...)")
    if not isinstance(timed, wanted):
        shown = f"{timed.kind} {timed.name!r}" if isinstance(timed, Declared) else repr(timed)
        raise DefinitionError(f"app {app.id!r}: @app.{what} is for what {ways} gives, not for {shown}")
    if timed.app is not app:
        raise DefinitionError(f"{timed.kind} {timed.name!r} belongs to app {timed.app.id!r}, not to {app.id!r}")
    return timed
