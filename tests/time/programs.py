"""Random programs over everything that keeps time, from a seed: the same functions run in a Driver, in a task that is given up and
opened again, and over `tests.time.plain`.

`python -m tests.time.programs --from 1 --to 2000` looks for a seed whose answers differ.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from orchestrator import App, Hopping, Session, Sliding, Tumbling, WindowClosed
from orchestrator.testing import Driver
from pipeline.calls.call import without_waiting
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from tests.time import plain

Ops = list[tuple[Any, ...]]
Sent = Callable[[str, str], None]
KEYS = plain.KEYS
TRIED: set[Any] = set()  # calls that have failed once, as some do the first time


class Came(NamedTuple):
    """A record, or (with `topic` empty) time that comes to `at_ms` without one."""

    topic: str
    key: str | None
    value: str | None
    at_ms: int


class Answer(NamedTuple):
    sent: list[tuple[str, str, int]]
    tables: dict[str, dict[Any, Any]]
    late: dict[str, int]
    left: list[tuple[str, str, int]]


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def act(ops: Ops, tables: Any, send: Sent, key: str | None, at_ms: int, text: str) -> None:
    """What a function does: with tables of the pipeline, and with plain ones."""
    if key is None:
        return
    for op, name, *rest in ops:
        table = tables[name] if name else None
        if op == "add":
            place = table if rest[0] == 0 else table.at(at_ms + rest[0])
            _write(place, key, text[-9:], is_text=name.startswith("text"))
        elif op == "try":
            place = table.at(at_ms + rest[0])
            try:
                if rest[1]:
                    place[key] = "tried" if name.startswith("text") else ["tried"]
                else:
                    place.pop(key, None)
            except (WindowClosed, plain.Closed):
                send(key, f"{name} at {rest[0]} has closed")
        elif op == "put":
            table[key] = text[-9:] + rest[0]
        elif op == "add at":
            _write(table.at(at_ms), key, text[-9:], is_text=name.startswith("text"))
        elif op == "each at":
            for window in table.at(at_ms) if not isinstance(table, plain.Windows) else table:
                _write(window, key, text[-9:], is_text=name.startswith("text"))
        elif op == "near" and isinstance(table, plain.Slidings):
            send(key, f"{name}: {table.here(key)}")
        elif op == "near":
            send(key, f"{name}: {[(window.start_ms, window.end_ms, window.get(key)) for window in table]}")
        elif op == "each" and isinstance(table, plain.Slidings):
            table.add(key, text[-9:])
        elif op == "each":
            for window in table:
                _write(window, key, text[-9:], is_text=name.startswith("text"))
        elif op == "look":
            send(key, f"{name} at {rest[0]}: {table.at(at_ms + rest[0]).get(key)}")
        elif op == "look each":
            found = [(window.start_ms, window.end_ms, window.get(key)) for window in table.at(at_ms + rest[0])]
            send(key, f"{name} at {rest[0]}: {found}")
        elif op == "bounds":
            found = table.window(key)
            send(key, f"{name}: {None if found is None else tuple(found)}")
        elif op == "drop":
            send(key, f"dropped {name} {table.pop(key, None)}")
        elif op == "drop each":
            for window in table:
                window.pop(key, None)
        elif op == "set":
            table[rest[1] or key] = max(0, at_ms + rest[0])
        elif op == "see":
            send(key, f"{name}: {table.get(rest[0] or key)}")
        elif op == "count":
            table[rest[0] or key] = table.get(rest[0] or key, "") + "."
        elif op == "known":
            found = table.get(key)
            send(
                key,
                f"{name}: {found} of {table.timestamp_ms(key) if found is not None else None}, {_as_of(table, key, at_ms + rest[0])}",
            )
        elif op == "all":
            place = table.at(at_ms + rest[0]) if rest else table
            send(key, f"{name}: {place.all() if isinstance(place, plain.Seen) else dict(place)}")
        elif op == "say":
            send(key, text)
        elif op == "once" and not isinstance(send, plain.Send) and (at_ms + len(text)) % rest[0] == 0:
            tried = (id(ops), key, at_ms, text)
            if tried not in TRIED:
                TRIED.add(tried)
                raise ValueError("not yet")
        elif op == "fail" and (at_ms + len(text)) % rest[0] == 0:
            raise ValueError("drawn")


def _write(place: Any, key: str, text: str, *, is_text: bool) -> None:
    """In place, where a table has a default that can be changed so."""
    if is_text:
        place[key] = (place.get(key, "") if isinstance(place, plain.Seen) else place[key]) + text
    elif isinstance(place, plain.Window | plain.Meeting | plain.Tumblings | plain.Sessions):
        place[key] = [*place.get(key, []), text]
    elif len(text) % 2:
        place[key].append(text)
    else:
        place[key] = [*place.get(key, []), text]


def _as_of(table: Any, key: str, at_ms: int) -> Any:
    return table.value_as_of(key, at_ms) if isinstance(table, plain.Topic) else table.as_of(at_ms).get(key)


class Program:
    """Declarations drawn from a seed, as an app and as a plain task."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.app = App("drawn", partitions=1, on_error="skip")
        self.out = self.app.topic("out", key=str, value=str)
        self.left = self.app.topic("left", key=str, value=str)
        self.topics = {name: self.app.topic(name, key=str, value=str) for name in ("one", "two")}
        self.defs: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.declared: list[str] = []  # for a person
        self.plans: list[Callable[[plain.Task], None]] = []  # the same for a plain task
        self.joins: dict[str, Any] = {}
        self.used: set[str] = set()  # by a function of a record
        self.order = itertools.count(0, 2)
        self.numbers = itertools.count()
        self.is_small = (
            self.chance.random() < 0.3
        )  # one function of records, for the calls that are made without coroutines
        self.is_batch = self.is_small and self.chance.random() < 0.3  # that function takes several records at once
        if self.is_small:
            kinds = ["tumbling", "hopping", "expiring", *([] if self.is_batch else ["session", "sliding"])]
            for _ in range(self.chance.randrange(1, 3)):
                self.table(self.chance.choice(kinds))
            is_join = self.chance.random() < 0.3 and not self.is_batch
            (self.join if is_join else lambda: self.processor("one", list(self.kinds)))()
            for _ in range(self.chance.choice([0, 0, 1, 2])):
                self.closed()
        else:
            self.table("expiring")
            for topic in self.topics:  # in one task
                self.processor(topic, list(self.kinds))
            for _ in range(self.chance.randrange(2, 6)):
                self.table()
            rows = self.chance.choice([0, 0, 1, 2, 2])
            for _ in range(rows):
                self.table("row")
            number = self.chance.randrange(1, 5)
            joins_at = self.chance.randrange(number)
            for at in range(number):
                if at == joins_at and rows:
                    self.table_join()
                self.function()
        for name in self.kinds:
            if name not in self.used and not (self.is_small and self.joins):
                self.processor("one", [name])

    # declarations

    def table(self, kind: str = "") -> None:
        chance = self.chance
        kind = kind or chance.choice(
            ["tumbling", "hopping", "session", "session", "timers", "timers", "expiring", "topic", "sliding", "global"]
        )
        is_text = self.is_small and chance.random() < 0.7
        name = f"{'text' if is_text else ''}{kind}{next(self.numbers)}"
        grace, more = chance.choice([0, 0, 3, 10]), chance.choice([0, 0, 5, 30])
        options: dict[str, Any] = {"grace": ms(grace), "retain": ms(grace + more)}
        goes = chance.random() < 0.3 and kind in ("tumbling", "hopping", "session")
        if goes:
            options["on_late"] = self.left
        order = next(self.order)
        make: Callable[[plain.Task], Any]
        if kind == "tumbling":
            size, offset = chance.choice([(5, 0), (8, 3), (1, 0), (20, 0)])
            window: Any = Tumbling(ms(size), offset=ms(offset))
            make = lambda task: plain.Tumblings(task.clock, name, order, _tumbling(size, offset), grace, grace + more)  # noqa: E731
            facts = f"{size}+{offset} grace {grace} retain {grace + more}"
        elif kind == "hopping":
            size, every = chance.choice([(10, 5), (7, 3), (6, 6), (10, 4)])
            window = Hopping(ms(size), every=ms(every))
            make = lambda task: plain.Windows(task.clock, name, order, _hopping(size, every), grace, grace + more)  # noqa: E731
            facts = f"{size}/{every} grace {grace} retain {grace + more}"
        elif kind == "session":
            gap = chance.choice([1, 4, 9])
            window = Session(gap=ms(gap), merge=plain.merged)
            make = lambda task: plain.Sessions(task.clock, name, order, gap, grace, grace + more)  # noqa: E731
            facts = f"{gap} grace {grace} retain {grace + more}"
        elif kind == "sliding":
            size, grace = chance.choice([1, 4, 9, 20]), 30  # records are at most 25 out of order
            options = {"grace": ms(grace), "retain": ms(grace + more)}
            window = Sliding(ms(size))
            make = lambda task: plain.Slidings(task.clock, name, order, size, grace, grace + more)  # noqa: E731
            facts = f"{size} grace {grace} retain {grace + more}"
        elif kind == "global":
            if "world" in self.topics:
                return
            self.topics["world"] = self.app.topic("world", key=str, value=str)
            self.defs[name] = self.app.global_table(self.topics["world"])
            make, facts = lambda task: plain.Topic(task.clock, name, 0), "world"
        elif kind == "row":
            self.defs[name] = self.app.table(name, key=str, value=str)
            make, facts = lambda task: plain.Plain(task.clock, name, None), ""
        elif kind == "timers":
            self.defs[name] = self.app.timers(name, key=str)
            make, facts = lambda task: plain.Timers(task.clock, name, order), ""
        elif kind == "expiring":
            expire = chance.choice([None, 4, 15])
            more_options = {} if expire is None else {"expire": ms(expire)}
            self.defs[name] = self.app.table(name, key=str, value=str, **more_options)
            make, facts = lambda task: plain.Plain(task.clock, name, expire), f"{expire}"
        else:
            if "two" in {one.of.name for other, one in self.defs.items() if self.kinds[other] == "topic"}:
                return
            versions = chance.choice([5, 40])
            self.defs[name] = self.app.table_of(self.topics["two"], versions=ms(versions))
            make, facts = lambda task: plain.Topic(task.clock, name, versions), f"two {versions}"
        if kind in ("tumbling", "hopping", "session", "sliding"):
            value, default = (str, str) if is_text else (list[str], list)
            self.defs[name] = self.app.table(name, key=str, value=value, default=default, window=window, **options)
        self.kinds[name] = kind
        self.declared.append(f"{name} {facts}")

        def plan(task: plain.Task) -> None:
            task.tables[name] = made = make(task)
            made.keeps_late = goes
            if kind == "topic":
                task.topics.setdefault("two", []).append(made)
            elif kind == "global":
                task.globals.append(made)

        self.plans.append(plan)

    def ops(self, names: list[str], *, of_batch: bool = False) -> Ops:
        found: Ops = []
        chance = self.chance
        for name in names:
            kind = self.kinds[name]
            dt = chance.choice([0, 0, 0, -3, -12, 6])
            other = chance.choice([None, None, "b"])
            own: Ops = [("bounds", name), ("drop", name)]
            tried = ("try", name, dt, chance.random() < 0.7)
            choices: dict[str, Ops] = {
                "tumbling": [
                    ("add", name, dt),
                    ("add", name, 0),
                    ("look", name, dt),
                    ("drop", name),
                    ("all", name, dt),
                ],
                "hopping": [("each", name), ("each", name), ("look each", name, dt), ("drop each", name)],
                "session": [("add", name, dt), ("look", name, dt), ("all", name, dt), tried, *(own if dt == 0 else [])],
                "timers": [
                    ("set", name, chance.choice([7, 20, 1, -4, -9]), other),
                    ("set", name, chance.choice([7, 20, -4]), None),
                    ("see", name, other),
                    ("drop", name),
                    ("all", name),
                ],
                "expiring": [("count", name, other), ("see", name, other), ("drop", name), ("all", name)],
                "topic": [("known", name, dt), ("all", name)],
                "sliding": [("each", name), ("each", name), ("near", name)],
                "global": [("see", name, other), ("all", name)],
                "row": [("put", name, "!"), ("put", name, "?"), ("drop", name), ("drop", name), ("see", name, None)],
            }
            if of_batch:
                choices["tumbling"] = [("add", name, dt), ("look", name, dt)] if dt else [("add at", name)]
                choices["hopping"] = [("each at", name)]
            writes = 0
            for _ in range(chance.choice([1, 1, 2, 3])):
                op = chance.choice(choices[kind])
                writes += op[0] in ("add", "drop", "try")
                if kind == "session" and writes > 1 and op[0] in ("add", "drop", "try"):
                    continue  # one call writes a session at one time
                found.append(op)
        rows = [name for name in names if self.kinds[name] == "row"]
        if len(rows) > 1 and chance.random() < 0.5:  # one call changes both sides of a join
            found += [("drop", name) for name in rows]
        chance.shuffle(found)
        if chance.random() < 0.2:
            found.insert(chance.randrange(len(found) + 1), ("fail", "", chance.choice([3, 7])))
        if chance.random() < 0.3 and not of_batch:
            found.insert(chance.randrange(len(found) + 1), ("once", "", chance.choice([2, 5])))
        if chance.random() < 0.5:
            found.append(("say", ""))
        return found

    def chosen(self, *without: str) -> list[str]:
        names = [name for name in self.kinds if not self.is_small or name in self.used or not self.used]
        names = sorted(name for name in names if self.kinds[name] not in without)
        found = self.chance.sample(names, self.chance.randrange(min(1, len(names)), min(4, len(names)) + 1))
        rows = [name for name in names if self.kinds[name] == "row"]
        if any(name in rows for name in found):
            found += [name for name in rows if name not in found]
        return found

    def function(self) -> None:
        kind = self.chance.choice(["processor", "processor", "due", "due", "closed", "closed", "join"])
        if kind == "processor":
            self.processor(self.chance.choice(["one", "one", "two"]), self.chosen())
        elif kind == "join":
            self.join()
        else:
            self.closed(kind)

    def closed(self, kind: str = "closed") -> None:
        wanted = ("timers",) if kind == "due" else ("tumbling", "hopping", "session", "sliding")
        of = [name for name, one in self.kinds.items() if one in wanted and (name in self.used or not self.is_small)]
        if of:
            self.due(kind, self.chance.choice(of))

    def _body(self, names: list[str]) -> tuple[Ops, str]:
        ops, name = self.ops(names), f"f{next(self.numbers)}"
        return ops, name

    def _given(self, names: list[str], function: Any, name: str) -> tuple[list[Any], dict[Any, str], Any]:
        """The declared things of a function, their names, and the function with parameters of these names."""
        parameters = ", ".join([*(f"t{n}" for n in range(len(names))), "out"])
        scope: dict[str, Any] = {"function": function}
        first = "one, other" if name.startswith("j") else "first"
        pairs = ", ".join(f"{one!r}: t{n}" for n, one in enumerate(names))
        how = "async def" if self.chance.random() < 0.1 else "def"
        exec(f"{how} {name}({first}, {parameters}):\n    function(({first}), {{{pairs}}}, out)", scope)
        alias = {self.defs[one]: f"t{n}" for n, one in enumerate(names)}
        return [*(self.defs[one] for one in names), self.out], alias, scope[name]

    def processor(self, topic: str, names: list[str]) -> None:
        self.used.update(names)
        ops, name = self.ops(names, of_batch=self.is_batch), f"f{next(self.numbers)}"
        given, alias, function = self._given(
            names, lambda one, tables, out: act(ops, tables, out.send, one.key, one.timestamp_ms, str(one.value)), name
        )
        if self.is_batch:
            self.app.processor(self.topics[topic], *given, alias=alias, batch=True)(_batch(ops, name, names))
        else:
            self.app.processor(self.topics[topic], *given, alias=alias, retries=2)(function)
        self.declared.append(f"{name} {topic} {ops}{' batch' * self.is_batch}")
        windowed = " ".join(one for one in names if self.kinds[one] in ("tumbling", "hopping", "session"))
        body = lambda tables, send, key, at_ms, value: act(ops, tables, send, key, at_ms, str(value))  # noqa: E731
        self.plans.append(lambda task: task.steps.setdefault(topic, []).append(("call", windowed, body)))

    def due(self, kind: str, of: str) -> None:
        names = self.chosen("sliding")
        ops, name = self._body(names)

        def called(one: Any, tables: Any, out: Any) -> None:
            if kind == "due":
                act(ops, tables, out.send, one.key, one.timestamp_ms, f"due{one.timestamp_ms}")
            else:
                end = one.end_ms if self.kinds[of] == "session" else one.end_ms - 1
                act(ops, tables, out.send, one.key, end, f"[{one.value}]{one.start_ms}-{one.end_ms}")

        given, alias, function = self._given(names, called, name)
        (self.app.when_due if kind == "due" else self.app.when_closed)(self.defs[of], *given, alias=alias, retries=2)(
            function
        )
        self.declared.append(f"{name} of {of} {ops}")
        body = lambda tables, send, key, at_ms, text: act(ops, tables, send, key, at_ms, text)  # noqa: E731
        self.plans.append(lambda task: task.due.setdefault(of, []).append(body))

    def table_join(self) -> None:
        """Of two tables of the app, or of one and a topic."""
        chance = self.chance
        sides = [name for name, kind in self.kinds.items() if kind in ("row", "topic")]
        if len(sides) < 2:
            return
        left, right = chance.sample(sides, 2)
        names = [name for name in self.chosen("sliding", "global", "row", "topic", "expiring") if chance.random() < 0.5]
        # No timer in the past: where its call changes a row, the two would make each other due for ever.
        ops: Ops = [("say", ""), *(op for op in self.ops(names) if op[0] != "set" or op[2] > 0)]
        name, kind = f"j{next(self.numbers)}", chance.choice(["inner", "left", "outer"])

        def called(pair: Any, tables: Any, out: Any) -> None:
            one, other = pair
            values = [None if record is None else record.value for record in pair]
            at_ms = max(record.timestamp_ms for record in pair if record is not None)
            act(ops, tables, out.send, (one or other).key, at_ms, f"{values[0]}&{values[1]}")

        given, alias, function = self._given(names, called, name)
        self.app.table_join(self.defs[left], self.defs[right], *given, kind=kind, alias=alias, retries=2)(function)
        self.declared.append(f"{name} tables {left} {right} {kind} {ops}")

        def body(tables: Any, send: Sent, key: str, at_ms: int, text: str) -> None:
            act(ops, tables, send, key, at_ms, text)

        def plan(task: plain.Task) -> None:
            task.joined = plain.TableJoin((task.tables[left], task.tables[right]), kind, body)
            if "topic" in (self.kinds[left], self.kinds[right]):
                task.steps.setdefault("two", []).append(("row", name, body))

        self.plans.append(plan)

    def join(self) -> None:
        chance = self.chance
        names = [name for name in self.chosen("sliding", "global") if self.kinds[name] != "topic"]
        self.used.update(names)
        ops, (left, right) = self.ops(names), chance.choice([("one", "two"), ("two", "one"), ("one", "one")])
        name = f"j{next(self.numbers)}"
        before, after = chance.choice([(0, 0), (5, 5), (0, 9), (12, 3)])
        grace, kind = chance.choice([0, 0, 4]), chance.choice(["inner", "left", "outer"])
        on_late = chance.choice(["drop", self.left])

        def called(pair: Any, tables: Any, out: Any) -> None:
            one, other = pair
            at_ms = max(record.timestamp_ms for record in pair if record is not None)
            key = (one or other).key
            act(ops, tables, out.send, key, at_ms, f"{one and one.value}&{other and other.value}")

        given, alias, function = self._given(names, called, name)
        order = next(self.order)
        self.app.join(
            self.topics[left],
            self.topics[right],
            *given,
            within=(ms(before), ms(after)),
            grace=ms(grace),
            kind=kind,
            on_late=on_late,
            alias=alias,
            retries=2,
        )(function)
        self.joins[name] = function
        self.declared.append(f"{name} {left} {right} {kind} {before} {after} grace {grace} {ops}")

        def body(tables: Any, send: Sent, one: Any, other: Any) -> None:
            at_ms = max(record[0] for record in (one, other) if record is not None)
            key = (one or other)[2]
            act(ops, tables, send, key, at_ms, f"{one and one[3]}&{other and other[3]}")

        def plan(task: plain.Task) -> None:
            task.tables[name] = made = plain.Join(task.clock, name, order, (left, right), (after, before), grace, kind)
            made.keeps_late = on_late != "drop"
            task.due[name] = [body]
            for topic in dict.fromkeys((left, right)):
                task.steps.setdefault(topic, []).append(("join", name, body))

        self.plans.append(plan)

    # records

    def records(self, count: int) -> list[Came]:
        chance, at_ms, found = self.chance, 0, []
        disorder = chance.choice([0, 6, 25])
        for number in range(count):
            at_ms += chance.choice([0, 0, 1, 2, 5, 15])
            topic = chance.choice(["one", "one", "two", *(["world"] if "world" in self.topics else [])])
            if chance.random() < 0.05:
                found.append(Came("", None, None, at_ms))
                continue
            value = None if chance.random() < 0.05 else str(number)
            key = None if chance.random() < 0.03 else chance.choice(KEYS)
            found.append(Came(topic, key, value, max(0, at_ms - chance.randrange(disorder + 1))))
        return found

    # answers

    def plainly(self, records: list[Came]) -> Answer:
        task = plain.Task()
        for plan in self.plans:
            plan(task)
        for number, (topic, key, value, at_ms) in enumerate(records):
            if topic:
                task.record(topic, number, key, value, at_ms)
            else:
                task.advance(at_ms)
        shown = {
            name: rows for name, table in task.tables.items() if hasattr(table, "shown") and (rows := table.shown())
        }
        return Answer(task.sent, shown, {name: n for name, n in task.late.items() if n}, task.left)

    def reopened(self, records: list[Came]) -> Answer:
        """By a task that is given up and opened again from its stores after some units, and takes as many records at once as come."""
        (sub,) = self.app.topology().subtopologies
        stores = {table: DictStore() for table in sub.tables}
        counts = {name: topic.partitions for name, topic in self.app.topology().topics.items()}
        counts = dict.fromkeys(counts, 1)
        late: dict[str, int] = {}
        outputs: dict[str, list[Any]] = {"out": [], "left": []}
        chance, at = random.Random(1), 0
        number_of: dict[str, int] = {}
        given: list[Any] = []
        for topic, key, value, at_ms in records:
            if not topic:
                given.append(at_ms)
                continue
            offset = number_of[topic] = number_of.get(topic, -1) + 1
            if topic in sub.sources:
                raw = SourceRecord(offset, at_ms, *(None if one is None else one.encode() for one in (key, value)))
                given.append((topic, raw))
        while at < len(given):
            process = TaskProcess(self.app, sub, 0, stores, counts)
            often = chance.choice([0, 1, 3, 20])
            at += self._goes_on(process, given, at, often)
            changes = process.collect(in_parts=True) if chance.random() < 0.5 else process.collect()
            for table, written in changes.writes.items():
                stores[table].write(written)
                for start, stop in changes.gone.get(table, ()):
                    assert not list(stores[table].range(start, stop)), "what may be deleted at once is not gone"
            for name, n in changes.late.items():
                late[name] = late.get(name, 0) + n
            for (topic, _), sent in changes.outputs.items():
                outputs[topic] += sent
        tables = {
            name: {key if isinstance(key, str) else (key[0], tuple(key[1])): v for key, v in one.pairs(stores[name])}
            for name, one in self.defs.items()
            if self.kinds[name] not in ("topic", "expiring", "row", "global") and name in stores
        }
        sent = [(one.key.decode(), one.value.decode(), one.timestamp_ms) for one in outputs["out"]]
        left = [
            (one.key and one.key.decode(), one.value and one.value.decode(), one.timestamp_ms)
            for one in outputs["left"]
        ]
        joins = {self.app.processors[name].join.name: name for name in self.joins}
        tables = {name: rows for name, rows in tables.items() if rows}
        return Answer(sent, tables, {joins.get(name, name): n for name, n in late.items()}, left)

    def _goes_on(self, process: TaskProcess, given: list[Any], at: int, often: int) -> int:
        """Some units; how many records, or steps of time, are done."""
        clock, done = itertools.count(), 0
        while True:
            if isinstance(given[at], int):
                done += bool(without_waiting(process.advance(given[at], lambda: next(clock) < often)))
            else:
                end = next((n for n in range(at, len(given)) if isinstance(given[n], int)), len(given))
                some = given[at + done : end]
                if process.needs_async:
                    done += without_waiting(process.run_async(some, lambda: next(clock), often))
                else:
                    done += process.run(some, lambda: next(clock), often)
            if process.again is None:
                return done

    @property
    def keeps_time(self) -> bool:
        """Whether a task that is opened again knows the time of before, as far as a function can tell."""
        return "global" not in self.kinds.values()

    def driven(self, records: list[Came]) -> Answer:
        with Driver(self.app, partitions=1) as driver:
            for is_advance, some in itertools.groupby(records, lambda came: not came.topic):
                with driver.together() if self.is_batch and not is_advance else contextlib.nullcontext():
                    for topic, key, value, at_ms in some:
                        if topic:
                            driver.send(self.topics[topic], key, value, timestamp_ms=at_ms)
                        else:
                            driver.advance(at_ms)
            tables = {
                name: {
                    key if isinstance(key, str) else (key[0], tuple(key[1])): v for key, v in driver.table(one).items()
                }
                for name, one in self.defs.items()
                if self.kinds[name] not in ("topic", "expiring", "row", "global")
            }
            timed = {
                name: one
                for name, one in self.defs.items()
                if self.kinds[name] in ("tumbling", "hopping", "session", "sliding")
            }
            late = {name: driver.late(one) for name, one in {**timed, **self.joins}.items()}
            sent = [(one.key, one.value, one.timestamp_ms) for one in driver.records(self.out)]
            left = [(one.key, one.value, one.timestamp_ms) for one in driver.records(self.left)]
            tables = {name: rows for name, rows in tables.items() if rows}
            return Answer(sent, tables, {name: n for name, n in late.items() if n}, left)


def _batch(ops: Ops, name: str, names: list[str]) -> Any:
    """The function of a batch: its records one after the other, each with its own time."""

    def function(batch: Any, tables: Any, out: Any) -> None:
        for one in batch:
            send = partial(out.send, timestamp_ms=one.timestamp_ms)
            act(ops, tables, send, one.key, one.timestamp_ms, str(one.value))

    parameters = ", ".join([*(f"t{n}" for n in range(len(names))), "out"])
    pairs = ", ".join(f"{one!r}: t{n}" for n, one in enumerate(names))
    scope: dict[str, Any] = {"function": function}
    exec(f"def {name}(batch, {parameters}):\n    function(batch, {{{pairs}}}, out)", scope)
    return scope[name]


def _tumbling(size: int, offset: int) -> Callable[[int], list[tuple[int, int]]]:
    def of(at_ms: int) -> list[tuple[int, int]]:
        start = (at_ms - offset) // size * size + offset
        return [(max(0, start), start + size)]

    return of


def _hopping(size: int, every: int) -> Callable[[int], list[tuple[int, int]]]:
    return lambda at_ms: [(s, s + size) for s in range(0, at_ms + 1, every) if s <= at_ms < s + size]


def difference(seed: int, count: int = 60) -> str | None:
    """Where the answers of a seed's program part; None where they are one, or where it has no end."""
    program = Program(seed)
    records = program.records(count)
    try:
        expected = program.plainly(records)
    except plain.Endless:
        return None
    found = parted(expected, program.driven(records))
    if found is None and program.keeps_time:
        found = parted(expected, program.reopened(records), "reopened: ")
    return found


def parted(expected: Answer, got: Answer, what: str = "") -> str | None:
    if expected.sent != got.sent:
        at = next(n for n, (a, b) in enumerate(itertools.zip_longest(expected.sent, got.sent)) if a != b)
        return f"{what}sent {at}: expected {expected.sent[at : at + 3]}, got {got.sent[at : at + 3]}"
    for field, one, other in zip(Answer._fields[1:], expected[1:], got[1:], strict=True):
        if one != other:
            return f"{what}{field}: expected {one}, got {other}"
    return None


def shrunk(seed: int, count: int = 60) -> list[Came]:
    """Fewer records that still differ."""
    records = Program(seed).records(count)

    def differs(some: list[Came]) -> bool:
        program = Program(seed)
        expected = program.plainly(some)
        return expected != program.driven(some) or (program.keeps_time and expected != program.reopened(some))

    size = len(records) // 2
    while size:
        at = 0
        while at < len(records):
            fewer = records[:at] + records[at + size :]
            if differs(fewer):
                records = fewer
            else:
                at += size
        size //= 2
    return records


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--to", dest="last", type=int, default=200)
    parser.add_argument("--most", type=int, default=3)
    args = parser.parse_args()
    wrong = 0
    for seed in range(args.first, args.last + 1):
        found = difference(seed)
        if found is None:
            continue
        wrong += 1
        program, records = Program(seed), shrunk(seed)
        print(f"seed {seed}: {found}", *program.declared, *records, sep="\n  ")
        print(
            "  plain ",
            program.plainly(records),
            "\n  driven",
            Program(seed).driven(records),
            "\n  reopened",
            program.keeps_time and program.reopened(records),
        )
        if wrong == args.most:
            break
    print(f"{wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
