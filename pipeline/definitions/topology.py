"""Subtopologies: the connected pieces of an app. One rule: a number is given once, and names decide who keeps it.

Processors that share a source topic or a table belong together, because one task must see those records and that
state; a topic that is only sent to connects nothing. Numbers are matched with the kept numbering by the names of topics
and tables, are append-only, and a number whose piece is gone is never given again. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pipeline.definitions.declarations import Declarations
from pipeline.definitions.definition import Topic
from pipeline.definitions.late import check_circles, check_letters, dead_letters
from pipeline.definitions.numbering import Numbered, number
from pipeline.definitions.processor import Processor
from pipeline.errors import DefinitionError, TopologyError, TopologyRefused


@dataclass(frozen=True, slots=True)
class TopicDef:
    """A topic of the app in the log. `written`: the app writes it; one it only reads is not created by us.

    `partitions` is the count wanted, or the existing one where `with_partitions` was given it; the retention is that of a
    topic which is made anew.
    """

    name: str
    partitions: int
    kind: str = "plain"
    written: bool = False
    start: str = "beginning"
    retention_ms: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Subtopology:
    """One connected piece. `sources` and `sinks` are names in the log, `tables` names of definitions."""

    number: int
    name_set: frozenset[str]
    sources: tuple[str, ...]
    tables: tuple[str, ...]
    sinks: tuple[str, ...]
    partitions: int
    stateful: bool
    processors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A connected piece before it has a number and a count."""

    processors: tuple[Processor, ...]
    sources: tuple[str, ...]
    tables: tuple[str, ...]
    sinks: tuple[str, ...]
    depth: int  # re-keys upstream: a first version is numbered from the inputs on

    @property
    def names(self) -> frozenset[str]:
        return frozenset([f"topic {name}" for name in self.sources] + [f"table {name}" for name in self.tables])


@dataclass(frozen=True)
class Topology:
    """The subtopologies of one version of an app. Made by `App.topology()`."""

    app_id: str
    subtopologies: tuple[Subtopology, ...]
    topics: Mapping[str, TopicDef]
    numbers: Numbered
    _plan: _Plan

    def tasks(self) -> list[str]:
        """`0_0`, `0_1`, ... in natural order."""
        return [f"{sub.number}_{partition}" for sub in self.subtopologies for partition in range(sub.partitions)]

    def numbering(self) -> dict[str, Any]:
        """What to keep in the log, JSON-able, and to give to `App.topology(kept)` of the next version."""
        return self.numbers.kept()

    def subtopology(self, number: int) -> Subtopology:
        """By its number. Raises TopologyError."""
        for sub in self.subtopologies:
            if sub.number == number:
                return sub
        raise TopologyError(f"app {self.app_id!r} has no subtopology {number}; there are {_listed(self.subtopologies)}")

    def with_partitions(self, existing: Mapping[str, int]) -> Topology:
        """The same with the counts of topics that exist: an existing count wins. Raises TopologyError where they
        cannot go together; unknown topics are ignored."""
        return self._plan.topology(self.numbers, existing)


@dataclass(frozen=True)
class _Plan:
    """The pieces of an app, and what decides their partition counts."""

    app: Declarations
    pieces: tuple[_Piece, ...]
    kept: Mapping[str, Any] | None = None

    def topology(self, numbers: Numbered, existing: Mapping[str, int]) -> Topology:
        wanted = {topic.topic: topic.partitions for topic in self.app.topics.values()}
        counts = {name: existing.get(name, wanted[name]) for name in sorted(wanted)}
        subtopologies: list[Subtopology] = []
        topics: dict[str, TopicDef] = {}
        for piece, given in sorted(zip(self.pieces, numbers.given, strict=True), key=lambda pair: pair[1]):
            partitions = self._partitions(piece, given, counts, existing)
            for name in piece.sources:  # those that exist keep what they have
                counts[name] = existing.get(name, partitions)
            subtopologies.append(
                Subtopology(
                    given,
                    piece.names,
                    piece.sources,
                    piece.tables,
                    piece.sinks,
                    partitions,
                    bool(piece.tables),
                    tuple(processor.name for processor in piece.processors),
                )
            )
            for table in piece.tables:
                name = self.app.tables[table].changelog
                topics[name] = TopicDef(name, partitions, "changelog", written=True)
        written = {name for piece in self.pieces for name in piece.sinks}
        for topic in self.app.topics.values():
            kind = "repartition" if topic.is_between else "plain"
            partitions = counts[topic.topic] or self.app.partitions
            kept = topic.retention_ms, topic.retention_bytes
            topics[topic.topic] = TopicDef(topic.topic, partitions, kind, topic.topic in written, topic.start, *kept)
        ordered = {name: topics[name] for name in sorted(topics)}
        return Topology(self.app.id, tuple(subtopologies), MappingProxyType(ordered), numbers, self)

    def _partitions(
        self, piece: _Piece, given: int, counts: Mapping[str, int | None], existing: Mapping[str, int]
    ) -> int:
        """The one count of a piece. A re-key without a count of its own follows the topics it is read with. Without
        tables topics may differ that are there already: they grow one after the other, and the largest counts."""
        rekeyed = {topic.topic for topic in self.app.topics.values() if topic.is_between}
        fixed: dict[str, int] = {}
        for name in piece.sources:
            count = counts[name]
            if count is not None or name not in rekeyed:
                fixed[name] = self.app.partitions if count is None else count
        for table in piece.tables:
            changelog = self.app.tables[table].changelog
            if changelog in existing:
                fixed[changelog] = existing[changelog]
        if not piece.tables and rekeyed.isdisjoint(piece.sources) and all(name in existing for name in piece.sources):
            return max(fixed.values())
        if len(set(fixed.values())) > 1:
            shown = ", ".join(f"{name} has {count}" for name, count in sorted(fixed.items()))
            names = ", ".join(processor.name for processor in piece.processors)
            raise TopologyError(
                f"app {self.app.id!r}, subtopology {given} ({names}): partition counts differ: {shown}; "
                f"{_advice(fixed, existing)}"
            )
        return next(iter(fixed.values()), self.app.partitions)


def _advice(fixed: Mapping[str, int], existing: Mapping[str, int]) -> str:
    if any(name not in existing for name in fixed):
        return "give its topics equal counts, or rekey one of them"
    return (
        "where a key belongs is decided by the count, so a topic must not grow once there is state: where inputs have grown, "
        "`orchestrator repartition MODULE:APP --to` their number moves the state; else go on from a new topic with equal counts, rekey one "
        "of them, or start over (`orchestrator reset`, or another id)"
    )


def build(app: Declarations, kept: Mapping[str, Any] | None) -> Topology:
    """The topology of an app; see `App.topology`. Raises TopologyError, TopologyRefused."""
    if not any(processor.rekey_to is None for processor in app.processors.values()):
        raise TopologyError(f"app {app.id!r} has no processors; declare one with @app.processor(...)")
    _check_names(app)
    _check_concurrency(app)
    _check_global(app)
    check_circles(app.id, app.processors)
    check_letters(app)
    pieces = tuple(_pieces(app))
    for piece in pieces:
        _check_time(piece)
        _check_ahead(piece)
        _check_joined(piece)
    numbers = number([piece.names for piece in pieces], kept)
    if numbers is None:
        raise TopologyRefused(
            f"app {app.id!r} has no topic or table in common with what was kept under this id; "
            "it is another app: give it another id, or remove the old one's log"
        )
    return _Plan(app, pieces, kept).topology(numbers, {})


def _pieces(app: Declarations) -> list[_Piece]:
    """Connected pieces in the order of a first numbering: re-keys upstream, then names."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for processor in app.processors.values():
        nodes = [f"topic {topic.topic}" for topic in processor.sources]
        nodes += [f"table {table.name}" for table in processor.tables]
        nodes += [f"topic {table.source.topic}" for table in processor.tables if table.source is not None]
        for node in nodes[1:]:
            parent[root(node)] = root(nodes[0])
    groups: dict[str, list[Processor]] = {}
    for processor in app.processors.values():
        if processor.sources:
            groups.setdefault(root(f"topic {processor.sources[0].topic}"), []).append(processor)
    for processor in app.processors.values():
        if not processor.sources:
            table = processor.due or processor.tables[-1]  # a join's tables come last
            group = groups.get(root(f"table {table.name}"))
            if group is None:
                raise TopologyError(
                    f"app {app.id!r}: nothing that reads a topic writes {table.kind} {table.name!r}, so "
                    f"{processor.name} would never be called; declare {table.name!r} on a processor"
                )
            group.append(processor)
    pieces = [_piece(app, members) for members in groups.values()]
    return sorted(pieces, key=lambda piece: (piece.depth, piece.sources))


def _piece(app: Declarations, members: Sequence[Processor]) -> _Piece:
    sinks = {topic.topic for processor in members for topic in processor.sinks}
    for processor in members:
        sinks |= {letters.topic for letters in dead_letters(app, processor)}
    sources = {topic for processor in members for topic in processor.sources}
    sources |= {table.source for processor in members for table in processor.tables if table.source is not None}
    return _Piece(
        processors=tuple(members),
        sources=tuple(sorted(topic.topic for topic in sources)),
        tables=tuple(sorted({table.name for processor in members for table in processor.tables})),
        sinks=tuple(sorted(sinks)),
        depth=max(_depth(topic) for topic in sources),
    )


def _depth(topic: Topic[Any, Any]) -> int:
    depth = 0
    while topic.rekeyed_from is not None:
        topic, depth = topic.rekeyed_from, depth + 1
    return depth


def _check_names(app: Declarations) -> None:
    """No two definitions may mean one topic of the log."""
    taken: dict[str, str] = {}
    named = [(topic.topic, f"topic {topic.name!r}") for topic in app.topics.values()]
    named += [(table.changelog, f"table {table.name!r}") for table in app.tables.values()]
    for name, what in named:
        if name in taken:
            raise DefinitionError(f"app {app.id!r}: {taken[name]} and {what} both mean the topic {name!r}; rename one")
        taken[name] = what


def _check_concurrency(app: Declarations) -> None:
    """Records of a topic are called at once, or one at a time: a processor of the other kind would make that void."""
    for name, processor in app.processors.items():
        for topic in processor.sources if processor.concurrency > 1 else ():
            for other in app.processors.values():
                if topic in other.sources and other.concurrency == 1 and not other.fits_beside:
                    raise DefinitionError(
                        f"app {app.id!r}: {name} has concurrency={processor.concurrency}, but {other.name} reads "
                        f"{topic.name!r} too, one record at a time; give {other.name} concurrency= as well, or another topic"
                    )


def _check_ahead(piece: _Piece) -> None:
    """A record that is left out for its time cannot be one of a batch."""
    read = [topic for processor in piece.processors for topic in processor.sources]
    read += [table.source for processor in piece.processors for table in processor.tables if table.source is not None]
    limited = [topic for topic in read if topic.event_time.max_ahead_ms is not None]
    for processor in piece.processors if limited else ():
        if processor.batch or processor.concurrency > 1:
            option = processor.takes_many or f"concurrency={processor.concurrency}"
            raise DefinitionError(
                f"{processor.name} has {option}, but the times of {limited[0].name!r} are limited by max_ahead=, one record "
                "after the other; leave one of them out"
            )


def _check_global(app: Declarations) -> None:
    """The records of a global table belong to no task, so there is no stream time that they could be ahead of."""
    read = {topic.topic for processor in app.processors.values() for topic in processor.sources}
    for table in app.globals.values():
        if table.of.event_time.max_ahead_ms is not None and table.of.topic not in read:
            raise DefinitionError(
                f"app {app.id!r}: topic {table.of.name!r} has max_ahead=, but it is a global table alone, whose records no "
                "stream time is compared with; leave max_ahead= out, or read it with app.table_of"
            )


def _check_time(piece: _Piece) -> None:
    """What comes due comes in one order with all records of its task, so calls of the task are one at a time."""
    timed = [table for processor in piece.processors for table in processor.tables if table.is_ordered]
    for processor in piece.processors if timed else ():
        if processor.concurrency > 1:
            raise DefinitionError(
                f"{processor.name} has concurrency={processor.concurrency}, but {timed[0].kind} {timed[0].name!r} of the same "
                "tasks goes by the order of all records, one call after the other; leave concurrency= out, or rekey into other "
                "tasks"
            )


def _check_joined(piece: _Piece) -> None:
    """A join is called right after the call that changed its table; a batch has many changes in one call of many times."""
    for processor in piece.processors:
        joined = [table for table in processor.tables if table.is_joined and table.source is None]
        if processor.batch and joined:
            raise DefinitionError(
                f"{processor.name} has {processor.takes_many}, but table {joined[0].name!r} is joined, and the join is called "
                f"for each change at its time; leave {processor.takes_many.partition('=')[0]}= out"
            )


def _listed(subtopologies: Sequence[Subtopology]) -> str:
    return ", ".join(str(sub.number) for sub in subtopologies)
