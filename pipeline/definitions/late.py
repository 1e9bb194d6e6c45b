"""Where late records and dead letters go: what cannot be meant by `on_late=` or `on_error=` is refused.

One rule: a late record goes as it came, so the topic must have the types of the one that it came from; and neither it nor a
dead letter comes back to who sent it away, at once or by way of others, because it would go round for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.definitions.declarations import Declarations
from pipeline.definitions.definition import Topic
from pipeline.definitions.processor import Processor
from pipeline.errors import DefinitionError
from pipeline.values.codecs import Codec, JsonCodec, codec_name
from pipeline.values.schemas import unreadable
from pipeline.values.stored_forms import with_forms

Ways = dict[Topic[Any, Any], list[tuple[Topic[Any, Any], str]]]  # from a topic to others, by the names of processors


def checked_late(made: Processor) -> Processor:
    """The processor, whose late records go to topics of their types, and not to its own. Raises DefinitionError."""
    for late in made.late_topics:
        if late in made.sources:
            raise DefinitionError(
                f"{made.name}: on_late= sends late records to {late.name!r}, which it reads: each would come back, late, for "
                "ever; give them a topic of their own"
            )
        for source in made.sources:
            for part, of, to in (
                ("keys", source.key_codec, late.key_codec),
                ("values", source.value_codec, late.value_codec),
            ):
                problem = _differs(of, to)
                if problem is not None:
                    raise DefinitionError(
                        f"{made.name}: on_late= sends records of {source.name!r} to {late.name!r} as they came, and its {part} "
                        f"differ: {problem}; declare {late.name!r} with the types of {source.name!r}"
                    )
    return made


def check_circles(app_id: str, processors: Mapping[str, Processor]) -> None:
    """Refuses late records that come back by way of other processors or re-keys. Raises DefinitionError."""
    ways: Ways = {}
    for processor in processors.values():
        targets = processor.late_topics if processor.rekey_to is None else (processor.rekey_to,)
        for source in processor.sources:
            ways.setdefault(source, []).extend((target, processor.name) for target in targets)
    for processor in processors.values():
        for late in processor.late_topics:
            for source in processor.sources:
                names = next(_paths(ways, late, source, (processor.name,)), None)
                if names is not None:
                    raise DefinitionError(
                        f"app {app_id!r}: late records of {source.name!r} come back to it by on_late= of {', '.join(names)}, late, "
                        "for ever; give those of one of them a topic that none of them reads"
                    )


def check_letters(app: Declarations) -> None:
    """Refuses dead letters that come back by way of other processors or re-keys. Raises DefinitionError."""
    ways: Ways = {}
    answers = {processor.name: _answers_for(app, processor) for processor in app.processors.values()}
    for processor in app.processors.values():
        targets = dead_letters(app, processor) + ([] if processor.rekey_to is None else [processor.rekey_to])
        for source in answers[processor.name]:
            ways.setdefault(source, []).extend((target, processor.name) for target in targets)
    for processor in app.processors.values():
        for letters in dead_letters(app, processor):
            for source in answers[processor.name]:
                if source is letters and source not in processor.sources:
                    continue  # of a table of its own: it stops at one that it cannot read
                names = next(_paths(ways, letters, source, (processor.name,)), None)
                if names is not None:
                    raise DefinitionError(
                        f"app {app.id!r}: dead letters of {source.name!r} come back to it by on_error= of {', '.join(names)}, and "
                        f'fail for ever; give {names[-1]} an on_error= of its own: "stop", "skip", or a topic that none of them reads'
                    )


def _answers_for(app: Declarations, processor: Processor) -> list[Topic[Any, Any]]:
    """The topics whose records go by its `on_error`: those that it reads, and those of its tables that nobody reads."""
    read = {topic for other in app.processors.values() for topic in other.sources}
    tables = [table.source for table in processor.tables if table.source is not None and table.source not in read]
    return [*processor.sources, *tables]


def dead_letters(app: Declarations, processor: Processor) -> list[Topic[Any, Any]]:
    """The topics that take what fails in a processor."""
    return [choice for choice in app.error_policy(processor).choices() if isinstance(choice, Topic)]


def _paths(
    ways: Ways,
    at: Topic[Any, Any],
    to: Topic[Any, Any],
    names: tuple[str, ...],
) -> Iterator[tuple[str, ...]]:
    """The ways from one topic to another, each by the names of its processors."""
    if at is to:
        yield names
        return
    for target, name in ways.get(at, ()):
        if name not in names:
            yield from _paths(ways, target, to, (*names, name))


def _differs(of: Codec[Any], to: Codec[Any]) -> str | None:
    """Why what one codec wrote cannot be read by another; None where it can. Raw bytes can be anything."""
    names = codec_name(of), codec_name(to)
    if names[0] != names[1]:
        return None if names[1] == "bytes" else f"{names[0]} there, {names[1]} here"
    if isinstance(of, JsonCodec) and isinstance(to, JsonCodec):
        return unreadable(with_forms(of.type, of.schema), with_forms(to.type, to.schema), is_marked=True)
    return None
