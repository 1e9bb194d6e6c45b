"""Each rule of the order of time, taken away, is noticed by a scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.calls.foreign_key_joins import LeftSide
from pipeline.calls.passing import Passing
from pipeline.definitions.table_join import TableJoin
from pipeline.tables.grouped import GroupedTable
from pipeline.tables.observed import Row
from pipeline.time import join_view, session_view
from pipeline.time.due_index import DueIndex
from pipeline.time.join_view import JoinView
from pipeline.time.position import Position
from pipeline.time.session_view import SessionsView
from pipeline.time.sliding_view import SlidingView
from pipeline.time.timed_view import time_bytes
from pipeline.time.timer_view import TimersView
from pipeline.time.topic_view import TopicTableView
from pipeline.time.window_view import WindowsView
from tests.time.scenario import Play, parsed

FILES = sorted(Path(__file__).parent.glob("*.txt"))
NO_ROW = Row(bytes(8), 0)
Patch = Callable[[pytest.MonkeyPatch], Any]


def failing() -> list[str]:
    """The scenarios that do not come out as they are written."""
    found = []
    for path in FILES:
        declared, commands = parsed(path.read_text())
        try:
            fails = any(expected != got for _, _, expected, got in Play(declared).run(commands))
        except Exception:  # noqa: BLE001 - whatever a machine without one of its rules does
            fails = True
        if fails:
            found.append(path.stem)
    return found


def of(target: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Replaces a method by what `make` makes of it."""
    return lambda patch: patch.setattr(target, name, make(getattr(target, name)))


def both(*patches: Patch) -> Patch:
    """One rule that stands in two places, one of which most calls take."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(patch)

    return apply


def always(value: Any) -> Callable[[Any], Any]:
    return lambda real: lambda *args, **more: value


def later(by_ms: int) -> Callable[[Any], Any]:
    """A time is taken for so much later."""
    return lambda real: lambda self, before_ms: real(self, before_ms + by_ms)


RULES: dict[str, Patch] = {
    "a record comes before what is due at its own time": of(Passing, "_next", later(1)),
    "time passes strictly": of(
        Position, "has_passed", lambda real: lambda self, at_ms, order: at_ms <= self.reached[0]
    ),
    "what a call makes due in the past happens right after it": of(
        Passing, "_happen", lambda real: lambda self, under: real(self, under) if under else _nothing()
    ),
    "at one time the keys' bytes decide": of(
        DueIndex, "first", lambda real: lambda self: _last_of_first_time(self, real)
    ),
    "at one time the order of declaration decides": lambda patch: patch.setattr(
        TimersView, "next_place", _reversed_order(TimersView.next_place)
    ),
    "a timer is out of the mapping when its call begins": of(
        TimersView, "begin", lambda real: lambda self, due: _only_the_index(self, due)
    ),
    "a window is written while it is open": of(WindowsView, "is_late", always(False)),
    "a late record is late": of(Passing, "is_late", always(False)),
    "a hopping table gives only its open windows": of(WindowsView, "is_open", always(True)),
    "what is retained is forgotten in the end": lambda patch: (
        patch.setattr(WindowsView, "is_forgotten", lambda self, start: False),
        patch.setattr(WindowsView, "forget_expired", lambda self: None),
    ),
    "records exactly the gap apart meet": both(
        of(SessionsView, "_near", lambda real: lambda self, data, at: _nearer(self, real(self, data, at), at)),
        of(SessionsView, "_find_only", lambda real: lambda self: _one_nearer(self, real(self))),
    ),
    "several sessions are merged": of(SessionsView, "_near", lambda real: lambda self, *a: real(self, *a)[-1:]),
    "the earlier session is merged first": of(
        session_view, "reduce", lambda real: lambda merge, values: real(merge, values[::-1])
    ),
    "a closed session is not merged": of(SessionsView, "is_open", always(True)),
    "a window that begins right after a record": of(
        SlidingView, "_planned", lambda real: lambda self, *a: _without_after(real(self, *a))
    ),
    "exactly within apart matches": of(
        JoinView, "matches", lambda real: lambda self, side, key, at: _not_at_the_edge(self, real, side, key, at)
    ),
    "a record that is over matches nothing": of(JoinView, "is_over", always(False)),
    "a record that has matched is not announced alone": of(JoinView, "mark_matched", always(None)),
    "the left side comes before the right one": of(
        join_view.JoinView, "_place", lambda real: lambda self, index: _sides_swapped(real(self, index))
    ),
    "a result that is no more is taken back": of(
        TableJoin, "has_result", lambda real: lambda self, *rows: real(self, *rows) or not any(rows)
    ),
    "a table's row without another is no result of an inner join": of(TableJoin, "has_result", always(True)),
    "a tombstone leaves no row": of(TopicTableView, "row", lambda real: lambda self, key: real(self, key) or NO_ROW),
    "a result is taken back only where there was one": of(
        LeftSide, "_kept", lambda real: lambda *a: _with_result(real(*a))
    ),
    "a right row is answered to all that name it": of(
        GroupedTable, "members", lambda real: lambda self, group: real(self, group)[:1]
    ),
    "matches come by the other's time": of(
        JoinView, "matches", lambda real: lambda self, *a: list(reversed(real(self, *a)))
    ),
}


async def _nothing() -> None:
    return None


def _only_the_index(view: TimersView[Any], due: Any) -> None:
    view.layers.put({b"d" + time_bytes(due.timestamp_ms) + due.key: None}, due.timestamp_ms)


def _last_of_first_time(index: DueIndex, real: Any) -> bytes | None:
    first = real(index)
    if first is None:
        return None
    same = [key for key in index._heap if key[:9] == first[:9] and index._is_there(key)]
    return max(same)


def _reversed_order(real: Any) -> Any:
    def place(self: Any) -> Any:
        found = real(self)
        return None if found is None else (found[0], 100 - found[1], found[2])

    return place


def _nearer(view: Any, found: Any, at_ms: int) -> Any:
    return [one for one in found if one[0] > at_ms - view.gap_ms and one[1] < at_ms + view.gap_ms]


def _one_nearer(view: Any, one: Any) -> Any:
    view._only = one if one and _nearer(view, [one], view.at_ms) else None
    return view._only


def _without_after(plan: Any) -> Any:
    return type(plan)(plan.windows, plan.last_ms, None)


def _not_at_the_edge(view: Any, real: Any, side: int, key: bytes, at_ms: int) -> Any:
    ahead, back = view.sides[side].reach_ms, view.sides[1 - side].reach_ms
    return [one for one in real(view, side, key, at_ms) if at_ms - back < one[0] < at_ms + ahead]


def _with_result(row: Any) -> Any:
    return row and msgspec.structs.replace(row, has_result=True)


def _sides_swapped(place: Any) -> Any:
    return place[0], place[1] ^ 1, place[2]


def test_all_scenarios_come_out_as_they_are_written() -> None:
    assert failing() == []


@pytest.mark.parametrize("rule", RULES)
def test_every_removed_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[rule](monkeypatch)
    assert failing()
