"""The rules of time as plainly as they can be written, for one task: everything in lists, looked through each time, copied before
each call. What random programs are compared with (`tests.time.programs`). One rule: nothing of `pipeline` is used here.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

Place = tuple[int, int, str]
KEYS = ["a", "ab", "b"]
BEFORE_DUE = -1


class Closed(Exception):
    """A closed window was written."""


def merged(earlier: Any, later: Any) -> Any:
    """Of two sessions: of texts, or of lists."""
    return f"({earlier}|{later})" if isinstance(earlier, str) else ["(", *earlier, "|", *later, ")"]


class Clock:
    """How far time has come, and the call that is under way."""

    def __init__(self) -> None:
        self.reached: Place = (-1, BEFORE_DUE, "")
        self.at_ms = 0
        self.own: tuple[Any, str, int] | None = None  # the timers, key and time whose own call this is

    def has_passed(self, at_ms: int, order: int) -> bool:
        return (at_ms, order) <= self.reached[:2]


class Seen:
    """What a function looks at."""


class Send:
    """What a function sends."""

    def __init__(self, sent: list[tuple[str, str, int]], at_ms: int) -> None:
        self.sent, self.at_ms = sent, at_ms

    def __call__(self, key: str, text: str) -> None:
        self.sent.append((key, text, self.at_ms))


class Timed(Seen):
    def __init__(self, clock: Clock, name: str, order: int) -> None:
        self.clock, self.name, self.order = clock, name, order
        self.state: Any = {}
        self.keeps_late = False

    def next_place(self) -> Place | None:
        return None

    def is_late(self, key: str, at_ms: int) -> bool:
        return False


class Windows(Timed):
    """`of(ms)`: the windows that hold a time, earliest first, as (start, end)."""

    def __init__(
        self, clock: Clock, name: str, order: int, of: Callable[[int], list[tuple[int, int]]], grace: int, retain: int
    ) -> None:
        super().__init__(clock, name, order)
        self.of, self.grace, self.retain = of, grace, retain
        self.announces = False

    def is_open(self, end: int) -> bool:
        return not self.clock.has_passed(end - 1 + self.grace, self.order)

    def is_gone(self, end: int) -> bool:
        return self.clock.has_passed(end - 1 + self.retain, self.order)

    def is_late(self, key: str, at_ms: int) -> bool:
        return not any(self.is_open(end) for _, end in self.of(at_ms))

    def next_place(self) -> Place | None:
        places = [(end - 1 + self.grace, self.order, key) for key, _, end in self.state]
        return min((place for place in places if place > self.clock.reached), default=None)

    def begin(self, place: Place) -> tuple[str, str, int, int, int]:
        end = place[0] + 1 - self.grace
        (start,) = [one for key, one, other in self.state if (key, other) == (place[2], end)]
        return place[2], self.state[place[2], start, end], start, end, end - 1

    def shown(self) -> dict[Any, str]:
        return {(key, (start, end)): v for (key, start, end), v in self.state.items() if not self.is_gone(end)}

    # as a function sees them

    def at(self, ms: int) -> Any:
        return [Window(self, *one) for one in self.of(ms)] if ms >= 0 else []

    def __iter__(self) -> Iterator[Window]:
        return iter([one for one in self.at(self.clock.at_ms) if self.is_open(one.end_ms)])


class Tumblings(Windows):
    def at(self, ms: int) -> Any:
        return Window(self, *(self.of(ms)[0] if ms >= 0 else (-1, -1)))

    def get(self, key: str, default: Any = None) -> Any:
        return self.at(self.clock.at_ms).get(key, default)

    def __setitem__(self, key: str, value: str) -> None:
        self.at(self.clock.at_ms)[key] = value

    def pop(self, key: str, default: Any = None) -> Any:
        return self.at(self.clock.at_ms).pop(key, default)


class Window(Seen):
    def __init__(self, table: Windows, start: int, end: int) -> None:
        self.table, self.start_ms, self.end_ms = table, start, end

    def all(self) -> dict[str, Any]:
        gone = self.start_ms < 0 or self.table.is_gone(self.end_ms)
        found = [] if gone else [(key, v) for (key, start, _), v in self.table.state.items() if start == self.start_ms]
        return dict(sorted(found))

    def get(self, key: str, default: Any = None) -> Any:
        gone = self.table.is_gone(self.end_ms)
        return default if gone else self.table.state.get((key, self.start_ms, self.end_ms), default)

    def __setitem__(self, key: str, value: str) -> None:
        if self.start_ms < 0 or not self.table.is_open(self.end_ms):
            raise Closed
        self.table.state[key, self.start_ms, self.end_ms] = value

    def pop(self, key: str, default: Any = None) -> Any:
        if self.get(key) is None:
            return default
        if not self.table.is_open(self.end_ms):
            raise Closed
        return self.table.state.pop((key, self.start_ms, self.end_ms))


class Sessions(Timed):
    """`state`: (key, start, end, value) of each."""

    def __init__(self, clock: Clock, name: str, order: int, gap: int, grace: int, retain: int) -> None:
        super().__init__(clock, name, order)
        self.gap, self.grace, self.retain = gap, grace, retain
        self.announces = False
        self.state = []

    def is_open(self, end: int) -> bool:
        return not self.clock.has_passed(end + self.gap + self.grace, self.order)

    def is_gone(self, end: int) -> bool:
        return self.clock.has_passed(end + self.gap + self.retain, self.order)

    def near(self, key: str, at_ms: int) -> list[Any]:
        found = [s for s in self.state if s[0] == key and s[1] - self.gap <= at_ms <= s[2] + self.gap]
        return sorted(found, key=lambda s: (s[2], s[1]))

    def is_late(self, key: str, at_ms: int) -> bool:
        return not self.is_open(at_ms) and not any(self.is_open(s[2]) for s in self.near(key, at_ms))

    def next_place(self) -> Place | None:
        places = [(end + self.gap + self.grace, self.order, key) for key, _, end, _ in self.state]
        return min((place for place in places if place > self.clock.reached), default=None)

    def begin(self, place: Place) -> tuple[str, str, int, int, int]:
        end = place[0] - self.gap - self.grace
        (one,) = [s for s in self.state if (s[0], s[2]) == (place[2], end)]
        return place[2], one[3], one[1], end, end

    def shown(self) -> dict[Any, str]:
        return {(key, (start, end)): v for key, start, end, v in self.state if not self.is_gone(end)}

    # as a function sees them

    def at(self, ms: int) -> Meeting:
        return Meeting(self, ms)

    def get(self, key: str, default: Any = None) -> Any:
        return self.at(self.clock.at_ms).get(key, default)

    def __setitem__(self, key: str, value: str) -> None:
        self.at(self.clock.at_ms)[key] = value

    def pop(self, key: str, default: Any = None) -> Any:
        return self.at(self.clock.at_ms).pop(key, default)

    def window(self, key: str) -> Any:
        return self.at(self.clock.at_ms).window(key)


class Meeting(Seen):
    """The sessions that a time meets."""

    def __init__(self, table: Sessions, ms: int) -> None:
        self.table, self.ms = table, ms

    def all(self) -> dict[str, Any]:
        keys = sorted({s[0] for s in self.table.state})
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def met(self, key: str) -> list[Any]:
        near = self.table.near(key, self.ms)
        open_ones = [s for s in near if self.table.is_open(s[2])]
        if open_ones or self.table.is_open(self.ms):
            return open_ones
        return [s for s in near if not self.table.is_gone(s[2])][-1:]

    def get(self, key: str, default: Any = None) -> Any:
        values = [s[3] for s in self.met(key)]
        return reduce(merged, values) if values else default

    def window(self, key: str) -> Any:
        found = self.met(key)
        return (min(s[1] for s in found), max(s[2] for s in found)) if found else None

    def __setitem__(self, key: str, value: str) -> None:
        if self.ms < 0:
            raise Closed
        found = self.met(key)
        start, end = min([self.ms, *(s[1] for s in found)]), max([self.ms, *(s[2] for s in found)])
        if not self.table.is_open(end):
            raise Closed
        self.table.state = [s for s in self.table.state if s not in found] + [(key, start, end, value)]

    def pop(self, key: str, default: Any = None) -> Any:
        found = self.met(key)
        value = self.get(key, default)
        if found:
            if self.ms < 0 or not self.table.is_open(max(s[2] for s in found)):
                raise Closed
            self.table.state = [s for s in self.table.state if s not in found]
        return value


class Slidings(Timed):
    """`state`: (key, time, text) of each record, by arrival. Its grace is longer than records are out of order: none is late for some
    of its windows."""

    def __init__(self, clock: Clock, name: str, order: int, size: int, grace: int, retain: int) -> None:
        super().__init__(clock, name, order)
        self.size, self.grace, self.retain = size, grace, retain
        self.state = ()
        self._known: tuple[Any, list[tuple[str, int]]] = (None, [])

    def starts(self, key: str, more: tuple[int, ...] = ()) -> list[int]:
        """The windows that end at a record, and those that begin right after one and hold another."""
        times = sorted({at_ms for one, at_ms, _ in self.state if one == key} | set(more))
        after = {one + 1 for one, other in pairwise(times) if other <= one + 1 + self.size}
        return sorted(after | {max(0, at_ms - self.size) for at_ms in times})

    def value(self, key: str, start: int) -> Any:
        texts = [text for one, at_ms, text in self.state if one == key and start <= at_ms <= start + self.size]
        return "".join(texts) if self.name.startswith("text") else texts

    def windows(self) -> list[tuple[str, int]]:
        if self._known[0] is not self.state:
            keys = sorted({one[0] for one in self.state})
            self._known = self.state, [(key, start) for key in keys for start in self.starts(key)]
        return self._known[1]

    def next_place(self) -> Place | None:
        places = [(start + self.size + self.grace, self.order, key) for key, start in self.windows()]
        return min((place for place in places if place > self.clock.reached), default=None)

    def begin(self, place: Place) -> tuple[str, Any, int, int, int]:
        start = place[0] - self.size - self.grace
        return place[2], self.value(place[2], start), start, start + self.size + 1, start + self.size

    def shown(self) -> dict[Any, Any]:
        found = [
            (key, s) for key, s in self.windows() if not self.clock.has_passed(s + self.size + self.retain, self.order)
        ]
        return {(key, (start, start + self.size + 1)): self.value(key, start) for key, start in found}

    # as a function sees them

    def add(self, key: str, text: str) -> None:
        self.state = (*self.state, (key, self.clock.at_ms, text))

    def here(self, key: str) -> list[Any]:
        """The windows that hold a record of the call's time, with what they have."""
        at_ms = self.clock.at_ms
        found = [start for start in self.starts(key, (at_ms,)) if start <= at_ms <= start + self.size]
        return [(start, start + self.size + 1, self.value(key, start) or None) for start in found]


class Timers(Timed):
    def next_place(self) -> Place | None:
        return min(((at, self.order, key) for key, at in self.state.items()), default=None)

    def shown(self) -> dict[Any, Any]:
        return dict(self.state)

    def all(self) -> dict[Any, Any]:
        return dict(sorted(self.state.items()))

    def get(self, key: str, default: Any = None) -> Any:
        return self.state.get(key, default)

    def __setitem__(self, key: str, at_ms: int) -> None:
        own = self.clock.own
        if own is not None and own[0] == self.name and own[1] == key and at_ms <= own[2]:
            raise Closed
        self.state[key] = at_ms

    def pop(self, key: str, default: Any = None) -> Any:
        return self.state.pop(key, default)


class Plain(Timed):
    """A table, which may expire."""

    def __init__(self, clock: Clock, name: str, expire: int | None) -> None:
        super().__init__(clock, name, -1)
        self.expire = expire

    def all(self) -> dict[str, Any]:
        return {key: value for key in sorted(self.state) if (value := self.get(key)) is not None}

    def get(self, key: str, default: Any = None) -> Any:
        found = self.state.get(key)
        if found is None or (self.expire is not None and self.clock.reached[0] >= found[1] + self.expire):
            return default
        return found[0]

    def __setitem__(self, key: str, value: str) -> None:
        self.state[key] = value, self.clock.reached[0]

    def pop(self, key: str, default: Any = None) -> Any:
        value = self.get(key, default)
        self.state.pop(key, None)
        return value


class Topic(Timed):
    """A topic as a table with versions. `state`: by key the last (value, time), and all (time, value)."""

    def __init__(self, clock: Clock, name: str, versions: int) -> None:
        super().__init__(clock, name, -1)
        self.versions = versions
        self.state = {}, {}

    def take(self, key: str, value: str | None, at_ms: int) -> None:
        last, every = self.state
        every.setdefault(key, {})[at_ms] = value
        if value is None:
            last.pop(key, None)
        else:
            last[key] = value, at_ms

    def all(self) -> dict[str, Any]:
        return {key: value for key, (value, _) in sorted(self.state[0].items())}

    def get(self, key: str, default: Any = None) -> Any:
        return self.state[0].get(key, (default, 0))[0]

    def timestamp_ms(self, key: str) -> int:
        at_ms: int = self.state[0][key][1]
        return at_ms

    def value_as_of(self, key: str, at_ms: int) -> Any:
        if at_ms < 0 or at_ms < self.clock.reached[0] - self.versions:
            return None
        times = [one for one in self.state[1].get(key, {}) if one <= at_ms]
        return self.state[1][key][max(times)] if times else None


class TableJoin:
    """Of rows that a key has in two tables. `live`: the keys that have a result."""

    def __init__(self, sides: tuple[Any, Any], kind: str, body: Any) -> None:
        self.sides, self.kind, self.body = sides, kind, body
        self.live: set[str] = set()

    def rows(self, key: str) -> list[Any]:
        return [side.get(key) for side in self.sides]

    def has(self, rows: list[Any]) -> bool:
        left, right = (row is not None for row in rows)
        return (left and right) if self.kind == "inner" else left or (self.kind == "outer" and right)

    def at(self, key: str, at_ms: int) -> int:
        """The time of a call: the later one of the change and the rows, of which those of the app's tables are not known."""
        known = [side.timestamp_ms(key) for side in self.sides if isinstance(side, Topic) and side.get(key) is not None]
        return max([at_ms, *known])


class Join(Timed):
    """`state`: of each side the records that came in time, (time, arrival, key, value), and those that were announced or matched."""

    def __init__(
        self, clock: Clock, name: str, order: int, sides: tuple[str, str], reach: tuple[int, int], grace: int, kind: str
    ) -> None:
        super().__init__(clock, name, order)
        self.sides, self.reach, self.grace = sides, reach, grace
        self.alone = (kind != "inner", kind == "outer")
        self.state = {"kept": ([], []), "known": set()}

    def is_over(self, side: int, at_ms: int) -> bool:
        return self.clock.has_passed(at_ms + self.reach[side] + self.grace, self.order + side)

    def next_place(self) -> Place | None:
        return min((place for place, *_ in self._alone()), default=None)

    def _alone(self) -> list[tuple[Place, int, Any]]:
        return [
            ((one[0] + self.reach[side] + self.grace, self.order + side, one[2]), side, one)
            for side in (0, 1)
            if self.alone[side]
            for one in self.state["kept"][side]
            if (side, one[1]) not in self.state["known"]
        ]

    def begin(self, place: Place) -> tuple[int, Any]:
        side, one = min((side, one) for other, side, one in self._alone() if other == place)
        self.state["known"].add((side, one[1]))
        return side, one

    def matches(self, side: int, key: str, at_ms: int) -> list[Any]:
        ahead, back = self.reach[side], self.reach[1 - side]
        return [
            one
            for one in self.state["kept"][1 - side]
            if one[2] == key and at_ms - back <= one[0] <= at_ms + ahead and not self.is_over(1 - side, one[0])
        ]


MOST_CALLS = 5_000  # of a program of some tens of records


class Endless(BaseException):
    """A program makes due what makes due, again and again: a task refuses that (TooManyDue), the rules say nothing of it."""


class Task:
    """One task. `processors`: (name, topic, tables, body) in order; `due` by the name of timers or a window table; `joins`
    by name; a body takes (key, time, text, arguments by name)."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._calls = 0
        self.tables: dict[str, Any] = {}
        self.steps: dict[str, list[tuple[str, str, Any]]] = {}  # by topic: ("call"|"join", names, body)
        self.due: dict[str, list[Any]] = {}
        self.topics: dict[str, list[Topic]] = {}
        self.sent: list[tuple[str, str, int]] = []
        self.late: Counter[str] = Counter()
        self.left: list[Any] = []  # what went where late records go
        self.globals: list[Topic] = []
        self.joined: TableJoin | None = None

    # calls

    def call(self, body: Callable[..., None], at_ms: int, *what: Any) -> None:
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise Endless
        kept = {name: copy.deepcopy(table.state) for name, table in self.tables.items()}
        sent: list[tuple[str, str, int]] = []
        self.clock.at_ms = at_ms
        try:
            body(self.tables, Send(sent, at_ms), *what)
        except Exception:  # noqa: BLE001 - as in the pipeline: whatever it was, nothing of the call counts
            for name, state in kept.items():
                self.tables[name].state = state
        else:
            self.sent += sent
            self._after(kept, at_ms)

    def _after(self, kept: dict[str, Any], at_ms: int) -> None:
        """The calls of a join for the rows of its tables that a call has changed."""
        if self.joined is None:
            return
        own, self.clock.own = self.clock.own, None
        for side in [side for side in self.joined.sides if isinstance(side, Plain)]:
            before = kept[side.name]
            for key in KEYS:
                row = side.state.get(key)
                if (row and row[0]) != (before.get(key) and before[key][0]):
                    self.row(key, at_ms)
        self.clock.own = own

    def row(self, key: str, at_ms: int) -> None:
        """A row of a side of the join has changed."""
        join = self.joined
        assert join is not None
        rows = join.rows(key)
        if join.has(rows):
            join.live.add(key)
        elif key in join.live:
            join.live.remove(key)
            rows = [None, None]  # it is taken back
        else:
            return
        call_ms = join.at(key, at_ms)
        seen = [
            side.timestamp_ms(key) if isinstance(side, Topic) else at_ms
            for side, row in zip(join.sides, rows, strict=True)
            if row is not None
        ]
        self.call(join.body, call_ms, key, max(seen, default=call_ms), f"{rows[0]}&{rows[1]}")

    def make(self, body: Any, at_ms: int, *what: Any) -> None:
        self.call(body, at_ms, *what)
        self.past(self.clock.reached[0])

    def past(self, before_ms: int) -> None:
        """What a call made due in the past happens right after it, in the order of its time."""
        while True:
            timers = [table for table in self.tables.values() if isinstance(table, Timers)]
            due = [(place, table.name) for table in timers if (place := table.next_place()) is not None]
            if not due or min(due)[0][0] >= before_ms:
                return
            self.happens(min(due)[0], self.tables[min(due)[1]])

    # time

    def happens(self, place: Place, table: Any) -> None:
        self.clock.reached = max(self.clock.reached, place)
        if isinstance(table, Timers):
            del table.state[place[2]]
            for body in self.due.get(table.name, ()):
                self.clock.own = table.name, place[2], place[0]
                self.call(body, place[0], place[2], place[0], f"due{place[0]}")
                self.clock.own = None
                self.past(place[0])
        elif isinstance(table, Join):
            side, one = table.begin(place)
            pair = (one, None) if side == 0 else (None, one)
            for body in self.due[table.name]:
                self.make(body, one[0], *pair)
        else:
            key, value, start, end, at_ms = table.begin(place)
            for body in self.due[table.name]:
                self.make(body, at_ms, key, at_ms, f"[{value}]{start}-{end}")

    def pass_to(self, at_ms: int) -> None:
        while True:
            due = [
                (place, name)
                for name, table in self.tables.items()
                if (
                    isinstance(table, Timers | Join)
                    or (isinstance(table, Windows | Sessions | Slidings) and table.name in self.due)
                )
                and (place := table.next_place()) is not None
                and place[0] < at_ms
            ]
            if not due:
                return
            place, name = min(due)
            self.happens(place, self.tables[name])

    def advance(self, at_ms: int) -> None:
        self.pass_to(at_ms)
        self.clock.reached = max(self.clock.reached, (at_ms, BEFORE_DUE, ""))

    def record(self, topic: str, number: int, key: str | None, value: str | None, at_ms: int) -> None:
        if topic == "world" and key is not None:
            for table in self.globals:
                table.take(key, value, at_ms)
        if topic not in self.steps and topic not in self.topics:
            return
        self.pass_to(at_ms)
        self.clock.reached = max(self.clock.reached, (at_ms, BEFORE_DUE, ""))
        for table in self.topics.get(topic, ()):
            if key is not None:
                table.take(key, value, at_ms)
        for kind, names, body in self.steps.get(topic, ()):
            if kind == "join":
                self._join(self.tables[names], topic, number, key, value, at_ms, body)
                continue
            if kind == "row":
                if key is not None:
                    self.row(key, at_ms)
                    self.past(self.clock.reached[0])
                continue
            late = [name for name in names.split() if self.tables[name].is_late(key, at_ms)]
            self.late.update(late)
            self.left += [(key, value, at_ms)] * any(self.tables[name].keeps_late for name in late)
            if not late:
                self.make(body, at_ms, key, at_ms, value)

    def _join(self, join: Join, topic: str, number: int, key: Any, value: Any, at_ms: int, body: Any) -> None:
        if value is None:
            return
        own = (at_ms, number, key, value)
        sides = [side for side in (0, 1) if join.sides[side] == topic]
        if key is None:
            for side in sides:
                if join.alone[side]:
                    self.make(body, at_ms, *((own, None) if side == 0 else (None, own)))
            return
        sides = [side for side in sides if not join.is_over(side, at_ms)]
        if not sides:
            self.late[join.name] += 1
            self.left += [(key, value, at_ms)] * join.keeps_late
            return
        for side in sides:
            join.state["kept"][side].append(own)
        found = [(one[0], one[1], side, one) for side in sides for one in join.matches(side, key, at_ms)]
        for _, _, side, one in sorted(found):
            if one == own and side == 1:
                continue
            join.state["known"] |= {(side, number), (1 - side, one[1])}
            pair = (own, one) if side == 0 else (one, own)
            self.make(body, max(at_ms, one[0]), *pair)
