"""A processor as declared, and the checks of its declaration. One rule: what is wrong is refused at import time.

`bind` compares the function's parameters with what is declared, in order: the first takes the record (or, with
`batch=True`, the records) under any name; the others carry the names of the tables, sinks and resources.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pipeline.columns.declared import check_alike, check_installed, check_keys, check_values
from pipeline.definitions.definition import ByArrays, Declared, Owner, Resource, Stored, Topic, aliases
from pipeline.definitions.error_policy import WAIT, Choice, OnError
from pipeline.definitions.foreign_key_join import ForeignKeySide
from pipeline.definitions.join import JoinDef
from pipeline.definitions.options import checked_flag, is_parameter
from pipeline.definitions.table_join import TableJoin
from pipeline.definitions.timed import SessionDef, TimedDef, TimersDef, WindowedDef
from pipeline.definitions.topic_tables import GlobalTableDef
from pipeline.errors import DefinitionError
from pipeline.time.windows import Sliding

_LEADING = {1: "parameter, which takes the record", 2: "two parameters, which take the records"}
MOST_BACKOFF_S = 60.0  # the pause between two tries doubles up to this, or up to a longer `backoff=`


@dataclass(frozen=True, slots=True, eq=False)
class Processor:
    """A function, what it reads, and what it is given. A re-key is one too: `function` is its `by`. `due`: it is called
    for what closes or comes due there, and reads no topic; `join`: it is called with pairs of records of its sources;
    `table_join`: with pairs of rows of two tables, which topics write (its sources) or other processors; `foreign_key`: as one side of such a join."""

    name: str
    function: Callable[..., Any]
    sources: tuple[Topic[Any, Any], ...]
    others: tuple[Declared[Any], ...]
    batch: bool = False  # also where it takes columns
    columns: bool = False
    on_error: OnError | None = None
    timeout_s: float | None = None
    is_async: bool = False
    rekey_to: Topic[Any, Any] | None = None
    concurrency: int = 1
    retries: int = 0
    backoff_s: float = 1.0
    due: TimedDef[Any] | None = None
    join: JoinDef | None = None
    table_join: TableJoin | None = None
    foreign_key: ForeignKeySide | None = None

    @property
    def takes_many(self) -> str:
        """The option by which a call has many records; "" where it has one."""
        return "columns=True" if self.columns else "batch=True" if self.batch else ""

    @property
    def joins_tables(self) -> bool:
        return self.table_join is not None or self.foreign_key is not None

    @property
    def fits_beside(self) -> bool:
        """Whether it may be called with a record while others are under way: what it does follows from the record alone."""
        return not (self.is_async or self.batch or self.tables or self.globals or self.resources)

    @property
    def tables(self) -> tuple[Stored[Any], ...]:
        """What it needs of the task's stores: those it is given, those it is called for, and those that it joins."""
        given = [item for item in self.others if isinstance(item, Stored)]
        behind: list[Stored[Any]] = [item for item in (self.due, self.join) if item is not None]
        behind += self.table_join.sides if self.table_join is not None else ()
        behind += self.foreign_key.sides if self.foreign_key is not None else ()
        return (*given, *(item for item in behind if item not in given))

    @property
    def globals(self) -> tuple[GlobalTableDef[Any, Any], ...]:
        return tuple(item for item in self.others if isinstance(item, GlobalTableDef))

    @property
    def late_topics(self) -> tuple[Topic[Any, Any], ...]:
        """Where late records go."""
        timed = [item for item in self.tables if isinstance(item, TimedDef)] if self.sources else []
        return tuple(dict.fromkeys(item.on_late for item in timed if item.on_late is not None))

    @property
    def sinks(self) -> tuple[Topic[Any, Any], ...]:
        """Topics it sends to, its re-key's, those of late records and that of a join's messages among them."""
        declared = tuple(item for item in self.others if isinstance(item, Topic))
        if self.foreign_key is not None:
            declared = (*declared, self.foreign_key.sends_to)
        return (*declared, *self.late_topics) if self.rekey_to is None else (*declared, self.rekey_to)

    @property
    def resources(self) -> tuple[Resource[Any], ...]:
        return tuple(item for item in self.others if isinstance(item, Resource))


def checked_sources(app: Owner, source: Any) -> tuple[Topic[Any, Any], ...]:
    """The source or sources of a processor as a tuple of this app's topics. Raises DefinitionError."""
    sources = tuple(source) if isinstance(source, list | tuple) else (source,)
    if not sources:
        raise DefinitionError(f"app {app.id!r}: a processor needs a source; give a topic or a list of topics")
    for item in sources:
        if not isinstance(item, Topic):
            raise DefinitionError(
                f"app {app.id!r}: {_shown(item)} cannot be a processor's source; give a topic of app.topic()"
            )
        checked_app(app, item)
    _no_repeats(sources, "source")
    return sources


def checked_others(app: Owner, others: Sequence[Any]) -> tuple[Declared[Any], ...]:
    """Tables, sinks, timers and resources of a processor, all of this app. Raises DefinitionError."""
    for item in others:
        if not isinstance(item, Declared):
            raise DefinitionError(
                f"app {app.id!r}: {item!r} cannot be declared on a processor; give its tables, topics and resources"
            )
        checked_app(app, item)
        if isinstance(item, Topic) and item.rekeyed_from is not None:
            raise DefinitionError(
                f"{item.name!r} is a re-key: records come to it from {item.rekeyed_from.name!r} alone"
            )
    _no_repeats(others, "declaration")
    return tuple(others)


def checked_app(app: Owner, item: Declared[Any]) -> None:
    """Definitions are of one app: their codecs, names and changelogs are. Raises DefinitionError."""
    if item.app is not app:
        raise DefinitionError(
            f"{item.kind} {item.name!r} belongs to app {item.app.id!r}, not to {app.id!r}; declare it on {app.id!r} too"
        )


def checked_topic(app: Owner, topic: Any) -> None:
    """What is written to and read as a topic is one of this app. Raises DefinitionError."""
    if not isinstance(topic, Topic):
        raise DefinitionError(f"app {app.id!r}: {_shown(topic)} is no topic; give one of app.topic()")
    checked_app(app, topic)


def checked_table(app: Owner, table: Any) -> None:
    """What is read as a table is one of this app. Raises DefinitionError."""
    if not isinstance(table, Stored | GlobalTableDef):
        raise DefinitionError(f"app {app.id!r}: {_shown(table)} is no table; give one of app.table(), or timers")
    checked_app(app, table)


def _shown(item: Any) -> str:
    return f"{item.kind} {item.name!r}" if isinstance(item, Declared) else repr(item)


def checked_on_error(app: Owner, on_error: Any) -> OnError | None:
    """`on_error` of a processor or the app; the name of a topic is looked up when the topology is made.
    Raises DefinitionError."""
    if on_error is None:
        return None
    if not isinstance(on_error, Mapping):
        if on_error == WAIT:
            raise DefinitionError(
                f'app {app.id!r}: on_error="wait" would wait for errors of the code, too, and for ever; name the errors of '
                'a client that is away: on_error={ConnectionError: "wait"}'
            )
        return _checked_choice(app, on_error, on_error)
    if not on_error:
        raise DefinitionError(f"app {app.id!r}: on_error={{}} names no error; leave it out, or name one")
    for kind, choice in on_error.items():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise DefinitionError(f"app {app.id!r}: on_error names {kind!r}, which is not a class of exceptions")
        _checked_choice(app, choice, on_error)
    return dict(on_error)


def _checked_choice(app: Owner, choice: Any, on_error: Any) -> Choice:
    if isinstance(choice, str) and choice:
        return choice
    if not isinstance(choice, Topic):
        named = isinstance(on_error, Mapping)
        ways = '"stop", "skip", "wait", a topic of the app' if named else '"stop", "skip", a topic of the app'
        raise DefinitionError(
            f"app {app.id!r}: on_error={on_error!r} is none of {ways}, and none of these by class of error"
            if not named
            else f"app {app.id!r}: on_error={on_error!r} has {choice!r}, which is none of {ways}"
        )
    checked_app(app, choice)
    return choice


def waits(*on_error: OnError | None) -> bool:
    """Whether an error waits; given are the processor's and the app's."""
    for one in on_error:
        if isinstance(one, Mapping) and WAIT in one.values():
            return True
        if one is not None and not isinstance(one, Mapping):
            return False
    return False


def checked_timeout(name: str, timeout: Any, *, is_async: bool) -> float | None:
    """`timeout=` in seconds; a timedelta or a number. A plain call cannot be ended from outside, but with its process.
    Raises DefinitionError."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise DefinitionError(f"{name}: timeout={timeout!r} is neither a timedelta nor a number of seconds above 0")
    if not is_async:
        raise DefinitionError(
            f"{name}: timeout={timeout!r} is for calls that wait; declare {name} with async def, or leave it out: --max-call of "
            "`run` is for plain calls, too"
        )
    return float(seconds)


def checked_retries(name: str, retries: Any) -> int:
    """`retries=`: how often a call that raised is made again. Raises DefinitionError."""
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise DefinitionError(f"{name}: retries={retries!r} is not a whole number from 0 on")
    return retries


def checked_backoff(name: str, backoff: Any, *, is_used: bool) -> float:
    """`backoff=` in seconds; a timedelta or a number. `is_used`: the processor has retries, or waits.
    Raises DefinitionError."""
    if backoff is None:
        return 1.0
    seconds = backoff.total_seconds() if isinstance(backoff, timedelta) else backoff
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise DefinitionError(f"{name}: backoff={backoff!r} is neither a timedelta nor a number of seconds above 0")
    if not is_used:
        raise DefinitionError(
            f"{name}: backoff= is the pause between two tries, and there is one try; give retries= too, or leave it out"
        )
    return float(seconds)


def checked_concurrency(
    name: str, concurrency: Any, *, is_async: bool, batch: bool, others: Sequence[Declared[Any]]
) -> int:
    """`concurrency=`: how many calls of a task may be under way at once. Records of one key stay in order, so a call has
    the key of its record and no other: tables whose keys decide its task otherwise are refused.
    Raises DefinitionError."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise DefinitionError(f"{name}: concurrency={concurrency!r} is not a whole number from 1 on")
    if concurrency == 1:
        return concurrency
    option = f"{name}: concurrency={concurrency}"
    if not is_async:
        raise DefinitionError(f"{option} is for calls that wait; declare {name} with async def, or leave it out")
    if batch:
        raise DefinitionError(f"{option} takes one record a call, not a batch; leave batch= out, or concurrency=")
    for table in others:
        if isinstance(table, TimedDef):
            raise DefinitionError(
                f"{option} cannot have {table.kind} {table.name!r}: what comes due between its calls comes in order, one "
                "call at a time; leave concurrency= out"
            )
        if isinstance(table, GlobalTableDef) or (isinstance(table, Stored) and table.is_ordered):
            raise DefinitionError(f"{option} cannot have {table.kind} {table.name!r}; leave concurrency= out")
        if isinstance(table, Stored) and (table.route is not None or table.local):
            kind = "route=" if table.route is not None else "local="
            raise DefinitionError(
                f"{option} cannot have table {table.name!r} with {kind}: calls of several keys at once would share its keys; "
                "give it a table by the record's key, or leave concurrency= out"
            )
    return concurrency


def checked_batch(name: str, batch: Any, others: Sequence[Declared[Any]]) -> bool:
    """`batch=`: a call with many records has no one time, so what goes by the time of the call is refused.
    Raises DefinitionError."""
    for item in others if checked_flag(name, "batch", batch) else ():
        is_sliding = isinstance(item, WindowedDef) and isinstance(item.window_kind, Sliding)
        if isinstance(item, TimersDef | SessionDef) or is_sliding:
            what = "sliding windows" if is_sliding else "sessions" if isinstance(item, SessionDef) else item.kind
            raise DefinitionError(
                f"{name}: batch=True cannot have {what} {item.name!r}, which go by the time of each record; leave batch= out"
            )
    return bool(batch)


def checked_columns(
    name: str,
    columns: Any,
    *,
    batch: bool,
    concurrency: int,
    is_async: bool,
    sources: Sequence[Topic[Any, Any]],
    others: Sequence[Declared[Any]],
) -> bool:
    """`columns=`: a call with many records by arrays. Raises DefinitionError."""
    if not checked_flag(name, "columns", columns):
        return False
    check_installed(name)
    for problem, way_out in (
        (batch, "batch=True: the one gives arrays, the other records; leave one of them out"),
        (is_async, "async def: a call waits for nothing; declare it with def, or leave columns= out"),
        (concurrency != 1, "concurrency=: its calls are one at a time; leave one of them out"),
    ):
        if problem:
            raise DefinitionError(f"{name}: columns=True cannot have {way_out}")
    for item in others:
        if not isinstance(item, ByArrays):
            raise DefinitionError(
                f"{name}: columns=True cannot have {item.kind} {item.name!r}, which is not read by arrays; give it a table of "
                "app.table(), or leave columns= out"
            )
    for topic in sources:
        check_keys(name, topic.name, topic.key_codec)
        check_values(name, topic.name, topic.value_codec)
    check_alike(name, [(topic.name, topic.key_codec, topic.value_codec) for topic in sources])
    return True


def awaits(function: Callable[..., Any]) -> bool:
    """Whether calling it gives an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def bind(
    function: Callable[..., Any], others: Sequence[Declared[Any]], alias: Mapping[Any, str] | None, leading: int = 1
) -> str:
    """Check the parameters against the declaration; the name of the function. The first `leading` take what it is called
    with. Raises DefinitionError."""
    if not callable(function):
        raise DefinitionError(f"{function!r} is not a function; @app.processor(...) goes right above a def")
    name = getattr(function, "__name__", None) or type(function).__name__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{name} yields, so calling it does nothing; declare a topic and use its send()")
    if not isinstance(alias, Mapping | None):
        raise DefinitionError(f"{name}: alias={alias!r} does not say of what; write alias={{'the-name': 'a_name'}}")
    renamed = aliases(alias)
    unknown = sorted(set(renamed) - {item.name for item in others})
    if unknown:
        raise DefinitionError(f"{name}: alias= names {', '.join(unknown)}, which is not declared on it")
    declared = [renamed.get(item.name, item.parameter) for item in others]
    for parameter in declared:
        if not is_parameter(parameter):
            raise DefinitionError(f"{name}: {parameter!r} cannot be a parameter's name; give alias={{...: 'a_name'}}")
    positional, optional = _parameters(name, function)
    if len(positional) < leading:
        takes = (
            "no record; its first parameter is the record" if leading == 1 else "no pair; its first two are its records"
        )
        raise DefinitionError(f"{name}() takes {takes}")
    given = positional[leading:]
    if len(given) > len(declared):  # what has a default need not be declared
        given = [p for position, p in enumerate(given) if position < len(declared) or p not in optional]
    if given != declared:
        raise DefinitionError(
            f"{name}({', '.join(given)}) does not match the declaration ({', '.join(declared)}); after the first "
            f"{_LEADING[leading]}, they carry the declared names in that order"
        )
    return name


def _parameters(name: str, function: Callable[..., Any]) -> tuple[list[str], set[str]]:
    """Names of the positional parameters in order, and which of them have defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{name}: its parameters cannot be seen ({error}); wrap it in a def") from None
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise DefinitionError(f"{name}: {stars}{parameter.name} has no declared name; name the parameters")
        if parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise DefinitionError(f"{name}: {parameter.name} is keyword-only; arguments are given by position")
    return names, {p.name for p in parameters if p.default is not p.empty}


def _no_repeats(items: Sequence[Declared[Any]], what: str) -> None:
    for position, item in enumerate(items):
        if any(item is earlier for earlier in items[:position]):
            raise DefinitionError(f"{item.kind} {item.name!r} is given twice as a {what}; once is enough")
