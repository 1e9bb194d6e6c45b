"""The App: what a user's module declares. One rule: it only collects and checks; nothing runs here.

Topics, tables, resources and processors register themselves on the app; `topology()` turns them into subtopologies,
`describe()` into data that tools without the code can use, `run()` hands the app to the room that runs things.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args, overload

from pipeline.definitions.declare_foreign_key_join import DeclaresForeignKeyJoins
from pipeline.definitions.declare_join import DeclaresJoins
from pipeline.definitions.declare_processor import Declares, Name, Wait
from pipeline.definitions.declare_table_join import DeclaresTableJoins
from pipeline.definitions.declare_tables import DeclaresTables
from pipeline.definitions.declare_time import DeclaresTime, Options
from pipeline.definitions.definition import (
    Declared,
    Resource,
    Start,
    Stored,
    Topic,
    checked_name,
)
from pipeline.definitions.describe import check_schema, describe, with_others
from pipeline.definitions.error_policy import SKIP, STOP, WAIT, Choice, ErrorPolicy, OnError
from pipeline.definitions.foreign_key_join import ForeignKeyJoin, ForeignKeySide
from pipeline.definitions.join import JoinDef, checked_sides
from pipeline.definitions.late import checked_late
from pipeline.definitions.options import checked_options, checked_partitions
from pipeline.definitions.processor import (
    Processor,
    awaits,
    bind,
    checked_app,
    checked_backoff,
    checked_batch,
    checked_columns,
    checked_concurrency,
    checked_on_error,
    checked_others,
    checked_retries,
    checked_sources,
    checked_timeout,
    waits,
)
from pipeline.definitions.table_join import TableJoin, checked_table, not_writing
from pipeline.definitions.timed import checked_timed
from pipeline.definitions.topic_tables import GlobalTableDef
from pipeline.definitions.topology import Topology, build
from pipeline.errors import DefinitionError
from pipeline.time.durations import idle_ms
from pipeline.time.position import ORDERS
from pipeline.values.codecs import Codec

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Guarantee = Literal["exactly-once", "at-least-once"]
TOPIC_OPTIONS = ("partitions", "start", "alias", "timestamp", "max_ahead", "retention", "retention_bytes")
_RUNNER = ("workers.fleet.run_here", "run_app")


class App(Declares, DeclaresTables, DeclaresTime, DeclaresJoins, DeclaresTableJoins, DeclaresForeignKeyJoins):
    """An application: an id, and what is declared on it.

    `partitions` is the number of partitions of the topics it creates; the count of a topic that exists wins.
    `on_error` is what happens to a record whose processing fails: "stop", "skip", or a topic of the app for dead
    letters (by name here, where no topic is declared yet); or these by class of error, where "wait" is one more: the
    task pauses until the call succeeds. `idle`: tasks without records for that long follow the wall clock ("30s"); what
    then comes with an earlier time is out of order, which costs the one answer.
    """

    def __init__(
        self,
        id: str,
        *,
        partitions: int = 1,
        guarantee: Guarantee = "exactly-once",
        on_error: OnError = "stop",
        idle: str | timedelta | None = None,
    ) -> None:
        self.id = checked_name("app", id)
        self.partitions = checked_partitions(f"app {id!r}", partitions)
        if guarantee not in get_args(Guarantee):
            raise DefinitionError(f'app {id!r}: guarantee={guarantee!r} is not "exactly-once" or "at-least-once"')
        self.guarantee: Guarantee = guarantee
        self.idle_ms = None if idle is None else idle_ms(f"app {id!r}", idle)
        self.topics: dict[str, Topic[Any, Any]] = {}
        self.tables: dict[str, Stored[Any]] = {}  # timers and joins among them
        self.globals: dict[str, GlobalTableDef[Any, Any]] = {}
        self.resources: dict[str, Resource[Any]] = {}
        self.processors: dict[str, Processor] = {}
        self.on_error: OnError = checked_on_error(self, on_error) or "stop"
        self.module = str(sys._getframe(1).f_globals.get("__name__", ""))

    def __repr__(self) -> str:
        return f"<App {self.id!r}: {len(self.processors)} processors>"

    @overload
    def topic(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: type[V] | Codec[V],
        partitions: int | None = None,
        start: Start = "beginning",
        alias: str | None = None,
        timestamp: Callable[[V], int] | None = None,
        max_ahead: timedelta | None = None,
        retention: timedelta | None = None,
        retention_bytes: int | None = None,
    ) -> Topic[K, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key: type[K] | Codec[K],
        value: object,
        partitions: int | None = None,
        start: Start = "beginning",
        alias: str | None = None,
        timestamp: Callable[[Any], int] | None = None,
        max_ahead: timedelta | None = None,
        retention: timedelta | None = None,
        retention_bytes: int | None = None,
    ) -> Topic[K, Any]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key: object,
        value: object,
        partitions: int | None = None,
        start: Start = "beginning",
        alias: str | None = None,
        timestamp: Callable[[Any], int] | None = None,
        max_ahead: timedelta | None = None,
        retention: timedelta | None = None,
        retention_bytes: int | None = None,
    ) -> Topic[Any, Any]: ...
    def topic(
        self,
        name: str,
        *,
        key: Any,
        value: Any,
        **options: Any,
    ) -> Topic[Any, Any]:
        """Declare a topic. `start` is where reading begins while no position is committed, or when it is gone. `timestamp`
        gives a record's time from its value, in place of the log's; a record further ahead of stream time than `max_ahead`
        goes by `on_error`. `retention` and `retention_bytes` (of each partition) say how long the log keeps its records, where
        the app makes the topic; without them for ever, on a broker as that is set up."""
        checked_options(f"topic {name!r}", options, TOPIC_OPTIONS)
        topic: Topic[Any, Any] = Topic(self, name, key, value, **options)
        self._register(self.topics, topic)
        return topic

    @overload
    def resource(self, factory: Callable[[], AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, factory: Callable[[], Iterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, factory: Callable[[], Awaitable[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, factory: Callable[[], T], /) -> Resource[T]: ...
    def resource(self, factory: Callable[[], Any], /) -> Resource[Any]:
        """Declare a function that makes a client, a model or a pool, once per worker. One that yields it (plain or async)
        goes on after the yield when the worker closes; opened in the order of declaration, closed in reverse."""
        resource: Resource[Any] = Resource(self, factory.__name__, factory)
        self._register(self.resources, resource)
        return resource

    def topology(self, kept: Mapping[str, Any] | None = None) -> Topology:
        """The subtopologies, numbered as the `kept` numbering says. Raises TopologyError, DefinitionError."""
        return build(self, kept)

    def describe(self, topology: Topology | None = None, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What tools without the code need, as JSON-able data; `kept`: what other versions described. See `describe`."""
        return with_others(describe(self, topology or self.topology()), kept or {})

    def check_schema(self, kept: Mapping[str, Any]) -> None:
        """Raise SchemaRefused where a table's types cannot read what an earlier version (its `describe()`) stored."""
        check_schema(self, kept)

    def error_policy(self, processor: Processor) -> ErrorPolicy:
        """What becomes of a record whose call failed: the processor's own `on_error`, else the app's. Who reads the app's dead letters
        stops at one that fails: it would come back for ever."""
        levels: list[dict[type[Exception], Choice]] = []
        rest: Choice = "stop"
        for on_error, read in ((processor.on_error, ()), (self.on_error, processor.sources)):
            if on_error is None:
                continue
            if not isinstance(on_error, Mapping):
                rest = self._choice(on_error, processor, read)
                break
            levels.append({kind: self._choice(choice, processor, read) for kind, choice in on_error.items()})
        return ErrorPolicy(tuple(levels), rest)

    def _choice(self, choice: Choice, processor: Processor, read: Collection[Topic[Any, Any]]) -> Choice:
        """A choice with the name of a topic replaced by the topic, and "stop" for one of `read`. Raises DefinitionError where there is
        none."""
        if choice in (STOP, SKIP, WAIT):
            return choice
        topic = self.topics.get(choice) if isinstance(choice, str) else choice
        if topic is None:
            raise DefinitionError(
                f'app {self.id!r}: on_error={choice!r} of {processor.name} is none of "stop", "skip", one of its topics'
            )
        return STOP if topic in read else topic

    def run(self, *, log: str = "", state_dir: str = "") -> None:
        """Run one instance in this process until Ctrl-C, for debuggers. `log` is a URL as `--log` takes it, "memory:" for
        one that is gone with the process. Raises SystemExit with the exit code of `orchestrator run` where it fails."""
        module, name = _RUNNER
        getattr(import_module(module), name)(self, log=log, state_dir=state_dir)

    def add_rekey(
        self, source: Topic[Any, Any], target: Topic[Any, Any], by: Callable[..., Any], on_error: Any = None
    ) -> None:
        """Register what `topic.rekey()` declares. Raises DefinitionError."""
        if not callable(by) or awaits(by):
            raise DefinitionError(f"rekey {target.name!r}: by={by!r} is not a plain function of the record")
        checked_app(self, source)
        self._register(self.topics, target)
        name = f"rekey {target.name}"
        policy = checked_on_error(self, on_error)
        self.processors[name] = Processor(name, by, (source,), (), on_error=policy, rekey_to=target)

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
        sources, declared = checked_sources(self, source), checked_others(self, others)
        name = self._name_for(bind(function, declared, alias))
        is_async = awaits(function)
        tries = checked_retries(name, retries)
        by_arrays = checked_columns(
            name,
            columns,
            batch=batch,
            concurrency=concurrency,
            is_async=is_async,
            sources=sources,
            others=declared,
        )
        found = Processor(
            name,
            function,
            sources,
            declared,
            batch=by_arrays or checked_batch(name, batch, declared),
            columns=by_arrays,
            on_error=checked_on_error(self, on_error),
            timeout_s=checked_timeout(name, timeout, is_async=is_async),
            is_async=is_async,
            concurrency=checked_concurrency(name, concurrency, is_async=is_async, batch=batch, others=declared),
            retries=tries,
        )
        is_used = tries > 0 or waits(found.on_error, self.on_error)
        made = replace(found, backoff_s=checked_backoff(name, backoff, is_used=is_used))
        self.processors[name] = checked_late(made)

    def _add_due(
        self, what: str, function: Callable[..., Any], timed: Any, others: Sequence[Any], options: Options
    ) -> None:
        """`what` is "when_due" or "when_closed"."""
        found = self._called(function, others, options)
        self.processors[found.name] = replace(found, due=checked_timed(self, what, timed))

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
        sides = checked_sides(self, left, right)
        found = self._called(function, others, options, leading=2)
        join = JoinDef(self, found.name, *sides, within=within, grace=grace, kind=kind, on_late=on_late)
        made = checked_late(replace(found, sources=tuple(dict.fromkeys(sides)), join=join))
        self._add_stored(join)
        self.processors[found.name] = made

    def _add_table_join(
        self, function: Callable[..., Any], left: Any, right: Any, others: Sequence[Any], options: Options, *, kind: Any
    ) -> None:
        found = self._called(function, others, options, leading=2)
        what = f"table join {found.name}"
        sides = [checked_table(self, what, side, self._table_of) for side in (left, right)]
        join = TableJoin(found.name, sides[0], sides[1], kind)
        not_writing(found.name, join.sides, found.others)
        sources = tuple(side.source for side in join.sides if side.source is not None)
        self.processors[found.name] = replace(found, sources=sources, table_join=join)

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
        found = self._called(function, others, options, leading=2)
        what = f"foreign-key join {found.name}"
        sides = [checked_table(self, what, side, self._table_of) for side in (left, right)]
        join = ForeignKeyJoin(self, found.name, sides[0], sides[1], key=key, kind=kind)
        not_writing(found.name, tuple(dict.fromkeys(sides)), found.others)
        for topic in (join.subscriptions, join.answers):
            self._register(self.topics, topic)
        for state in (join.left_state, join.right_state):
            self._add_stored(state)
        for is_left, name in ((True, found.name), (False, f"{found.name} subscriptions")):
            side = ForeignKeySide(join, is_left=is_left)
            others_ = found.others if is_left else ()
            made = replace(found, name=name, others=others_, is_async=found.is_async and is_left)
            self.processors[name] = replace(made, sources=side.reads, foreign_key=side)

    def _table_of(self, topic: Topic[Any, Any]) -> Any:
        """The table of a topic, which is declared where it is not yet."""
        known = self.tables.get(topic.name)
        return known if known is not None and known.source is topic else self.table_of(topic)

    def _called(
        self, function: Callable[..., Any], others: Sequence[Any], options: Options, leading: int = 1
    ) -> Processor:
        """A function that is called with what time brings about, and not with the records of a source."""
        declared = checked_others(self, others)
        name = self._name_for(bind(function, declared, options.get("alias"), leading))
        on_error = checked_on_error(self, options.get("on_error"))
        tries, is_async = checked_retries(name, options.get("retries", 0)), awaits(function)
        is_used = tries > 0 or waits(on_error, self.on_error)
        return Processor(
            name,
            function,
            (),
            declared,
            on_error=on_error,
            timeout_s=checked_timeout(name, options.get("timeout"), is_async=is_async),
            is_async=is_async,
            retries=tries,
            backoff_s=checked_backoff(name, options.get("backoff"), is_used=is_used),
        )

    def _name_for(self, base: str) -> str:
        """A name that no processor has yet: one function may be declared on several sources."""
        name, count = base, 1
        while name in self.processors:
            count += 1
            name = f"{base}-{count}"
        return name

    def _add_global(self, item: GlobalTableDef[Any, Any]) -> None:
        self._register(self.globals, item)

    def _add_stored(self, item: Any) -> None:
        item.order = ORDERS * len(self.tables)
        self._register(self.tables, item)

    def _register(self, where: dict[str, Any], item: Declared[Any]) -> None:
        if (other := where.get(item.name)) is not None:
            raise DefinitionError(
                f"app {self.id!r} has two {item.kind}s called {item.name!r}; rename one of them"
                if item.kind == other.kind == item.kind.rstrip("s")
                else f"app {self.id!r} has {other.kind} and {item.kind} called {item.name!r}; rename one of them"
            )
        where[item.name] = item
