"""A small language for event time: what is declared, the records that come, and the calls that follow from each.

    tumbling sums 10 grace 5        windows of 10 ms that add up the values of a key; also hopping, session, timers, join
    > beats ann 3                   a record of topic `beats` with a key and a time; its value is its number, from 1 on
    closed sums ann 0..10 = 1 @9    a call that follows from it, with the time that it has

A command begins with `>`: a record, `advance TIME`, or `show NAME`. Lines before the first one declare. Calls are written
down in the order in which they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal, cast

from orchestrator import App, Hopping, Session, Sliding, Tumbling
from orchestrator.testing import Driver
from pipeline.definitions.definition import Topic

Commands = list[tuple[int, str, list[str]]]


def ms(text: str) -> timedelta:
    return timedelta(milliseconds=int(text))


def parsed(text: str) -> tuple[list[str], Commands]:
    """What is declared, and the commands: the line, the command, the lines expected of it."""
    declared: list[str] = []
    commands: Commands = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].rstrip()
        if not line:
            continue
        if line.startswith(">"):
            commands.append((number, line[1:].strip(), []))
        elif commands:
            commands[-1][2].append(line.strip())
        else:
            declared.append(line.strip())
    return declared, commands


class Play:
    """An app made of declarations, whose calls are written to `said`."""

    def __init__(self, declared: Iterable[str]) -> None:
        self.app = App("play")
        self.topics: dict[str, Topic[str, int]] = {}
        self.stored: dict[str, Any] = {}
        self.calls: list[str] = []
        self.foreign: dict[int, str] = {}  # foreign keys by value
        self.joins: dict[str, Callable[..., None]] = {}
        self.out = self.app.topic("out", key=str, value=str)
        for line in declared:
            kind, name, *rest = line.split()
            getattr(self, f"declare_{kind}")(name, rest)

    def topic(self, name: str) -> Topic[str, int]:
        if name not in self.topics:
            self.topics[name] = self.app.topic(name, key=str, value=int)
        return self.topics[name]

    def table_of(self, name: str) -> Any:
        if name not in self.stored:
            self.stored[name] = self.app.table_of(self.topic(name))
        return self.stored[name]

    def note(self, text: str, out: Any, key: Any) -> None:
        """The call goes to a topic as well, for its time."""
        self.calls.append(text)
        out.send(key, text)

    # declarations

    def declare_tumbling(self, name: str, rest: list[str]) -> None:
        self._windows(name, Tumbling(ms(rest[0])), rest[1:])

    def declare_hopping(self, name: str, rest: list[str]) -> None:
        self._windows(name, Hopping(ms(rest[0]), every=ms(rest[2])), rest[3:])

    def declare_sliding(self, name: str, rest: list[str]) -> None:
        self._windows(name, Sliding(ms(rest[0])), rest[1:])

    def declare_session(self, name: str, rest: list[str]) -> None:
        self._windows(name, Session(gap=ms(rest[0]), merge=lambda earlier, later: earlier + later), rest[1:])

    def _windows(self, name: str, window: Any, rest: list[str]) -> None:
        options: dict[str, Any] = {option: ms(rest[at + 1]) for at, option in enumerate(rest) if at % 2 == 0}
        table: Any = self.app.table(name, key=str, value=str, default=str, window=window, **options)
        self.stored[name] = table

        def count(record: Any, table: Any) -> None:
            for one in table if isinstance(window, Hopping | Sliding) else [table]:
                one[record.key] += f"+{record.value}" if one[record.key] else str(record.value)

        def close(window: Any, out: Any) -> None:
            text = f"closed {name} {window.key} {window.start_ms}..{window.end_ms} = {window.value}"
            self.note(text, out, window.key)

        count.__name__, close.__name__ = f"count_{name}", f"close_{name}"
        self.app.processor(self.topic("beats"), table, alias={table: "table"})(count)
        self.app.when_closed(table, self.out)(close)

    def declare_timers(self, name: str, rest: list[str]) -> None:
        """`timers silent 20 [again 5] [then other 3]`: set 20 after each record, cancelled by one without a value; again 5 later;
        another's in the call."""
        timers: Any = self.app.timers(name, key=str)
        self.stored[name] = timers
        options = dict(zip(rest[1::2], rest[2::2], strict=False))

        def beat(record: Any, timers: Any) -> None:
            if record.value is None:
                timers.pop(record.key, None)
            else:
                timers[record.key] = max(0, record.timestamp_ms + int(rest[0]))

        def due(due: Any, timers: Any, out: Any) -> None:
            self.note(f"due {name} {due.key}", out, due.key)
            if "again" in options and due.timestamp_ms < 100:
                timers[due.key] = due.timestamp_ms + int(options["again"])
            if "other" in options and due.key != "other":
                timers["other"] = max(0, due.timestamp_ms + int(options["other"]))

        beat.__name__, due.__name__ = f"set_{name}", f"due_{name}"
        self.app.processor(self.topic("beats"), timers, alias={timers: "timers"})(beat)
        self.app.when_due(timers, timers, self.out, alias={timers: "timers"})(due)

    def declare_join(self, name: str, rest: list[str]) -> None:
        """`join pairs left right outer 5 10 grace 2`: before 5, after 10."""
        options = {option: ms(rest[at + 1]) for at, option in enumerate(rest) if at >= 5 and at % 2 == 1}
        kind = cast(Literal["inner"], rest[2])

        def match(left: Any, right: Any, out: Any) -> None:
            one, two = (None if record is None else record.value for record in (left, right))
            self.note(f"{name} {one} {two}", out, (left or right).key)

        match.__name__ = name
        within = (ms(rest[3]), ms(rest[4]))
        self.app.join(self.topic(rest[0]), self.topic(rest[1]), self.out, within=within, kind=kind, **options)(match)
        self.joins[name] = match

    def declare_tables(self, name: str, rest: list[str]) -> None:
        """`tables pairs left right outer`: a join of two topics as tables."""
        kind = cast(Literal["outer"], rest[2])

        def match(left: Any, right: Any, out: Any) -> None:
            self.note(f"{name} {_pair(left, right)}", out, (left or right).key)

        match.__name__ = name
        left, right = (self.table_of(topic) for topic in rest[:2])
        self.app.table_join(left, right, self.out, kind=kind)(match)

    def declare_foreign(self, name: str, rest: list[str]) -> None:
        """`foreign pairs orders customers left`: by the foreign key that is in the value (see `records`)."""
        kind = cast(Literal["left"], rest[2])

        def match(left: Any, right: Any, out: Any) -> None:
            self.note(f"{name} {_pair(left, right)}", out, left.key)

        match.__name__ = name
        left, right = (self.table_of(topic) for topic in rest[:2])
        self.app.foreign_key_join(left, right, self.out, key=lambda value: self.foreign.get(value), kind=kind)(match)

    def declare_lookup(self, name: str, rest: list[str]) -> None:
        """`lookup priced orders rates [versions 20 | global] [by]`: each order with what a topic as a table has of its key (as of
        the order's time, with versions), or of its foreign key."""
        source, of = rest[:2]
        if "global" in rest:
            table: Any = self.app.global_table(self.topic(of))
        elif "versions" in rest:
            table = self.app.table_of(self.topic(of), versions=ms(rest[3]))
        else:
            table = self.table_of(of)

        def look(record: Any, table: Any, out: Any) -> None:
            key = self.foreign.get(record.value) if "by" in rest else record.key
            seen = table.as_of(record.timestamp_ms) if "versions" in rest else table
            self.note(f"{name} {record.value} {seen.get(key) if key is not None else None}", out, record.key)

        look.__name__ = name
        self.app.processor(self.topic(source), table, self.out, alias={table: "table"})(look)

    # commands

    def records(self, commands: Commands) -> list[tuple[str, str | None, int, int | None]]:
        """Topic, key, time, value of each record of the scenario."""
        found = []
        for number, (_, command, _) in enumerate(commands, 1):
            topic, key, at, *value = command.split()
            found.append((topic, None if key == "-" else key, int(at), self.value(number, value)))
        return found

    def value(self, number: int, words: list[str]) -> int | None:
        """The value of a record, from what stands behind its time: `nothing`, or its foreign key."""
        if words == ["nothing"]:
            return None
        if words:
            self.foreign[number] = words[0]
        return number

    def run(self, commands: Commands) -> list[tuple[int, str, list[str], list[str]]]:
        """Each command with what is expected of it, and what it brought about."""
        results = []
        number = 0
        with Driver(self.app) as driver:
            for line, command, expected in commands:
                before, sent = len(self.calls), len(driver.records(self.out))
                late = self._late(driver)
                words = command.split()
                shown: list[str] = []
                if words[0] == "show":
                    table = driver.table(self.stored[words[1]])
                    shown = [_shown(key, value) for key, value in table.items()]
                elif words[0] == "advance":
                    driver.advance(int(words[1]))
                else:
                    number += 1
                    key = None if words[1] == "-" else words[1]
                    value = self.value(number, words[3:])
                    driver.send(self.topics[words[0]], key, value, timestamp_ms=int(words[2]))
                times = [record.timestamp_ms for record in driver.records(self.out)[sent:]]
                calls = [f"{call} @{at}" for call, at in zip(self.calls[before:], times, strict=True)]
                now_late = self._late(driver)
                for name in late:
                    calls += [f"late {name}"] * (now_late[name] - late[name])
                results.append((line, command, expected, [*calls, *shown]))
        return results

    def _late(self, driver: Driver) -> dict[str, int]:
        late = {
            name: driver.late(table)
            for name, table in self.stored.items()
            if table.kind == "table" and table.keeps_time
        }
        return {**late, **{name: driver.late(function) for name, function in self.joins.items()}}


def _pair(left: Any, right: Any) -> str:
    if left is not None and left.value is None:
        return f"{left.key} taken back" + (" (with a second record)" if right is not None else "")
    one, two = (None if record is None else f"{record.value}@{record.timestamp_ms}" for record in (left, right))
    return f"{(left or right).key} {one} {two}"


def _shown(key: Any, value: Any) -> str:
    if isinstance(key, tuple):
        return f"{key[0]} {key[1].start_ms}..{key[1].end_ms} = {value}"
    return f"{key} = {value}"
