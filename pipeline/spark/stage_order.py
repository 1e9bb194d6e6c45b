"""The order in which the subtopologies of an app are computed. One rule: a stage reads what is final, or is computed again.

What one subtopology sends another is final when all that it follows from is. Messages of a join by foreign key go both ways:
subscriptions follow from the left table alone, answers from the subscriptions and the right table, so the left subtopology is
computed once for the subscriptions and once more with the answers. A table that the function of a join writes follows from the
answers of that one; joins in a row are computed one after the other so. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.definitions.definition import Stored
from pipeline.definitions.topology import Subtopology


@dataclass
class _Progress:
    """How far the stages have come: topics that are final, and of each subtopology the final messages that it has read."""

    final: set[str] = field(default_factory=set)
    read: dict[int, frozenset[str]] = field(default_factory=dict)


def messages_of(app: App) -> dict[str, frozenset[str]]:
    """The topics of messages between the sides of joins, and which others of them each follows from: those of a join whose function
    writes a side of another one come before that one's."""
    found: dict[str, frozenset[str]] = {}
    behind = _behind_tables(app)
    for processor in app.processors.values():
        if processor.foreign_key is not None:
            join = processor.foreign_key.join
            found[join.subscriptions.topic] = behind[join.left.name]
            found[join.answers.topic] = behind[join.right.name] | {join.subscriptions.topic}
    return found


def _behind_tables(app: App) -> dict[str, frozenset[str]]:
    """Which messages each table follows from, through all that writes it: functions of joins, of processors and of timers, which go
    by their own tables."""
    found = dict.fromkeys(app.tables, frozenset[str]())
    known: dict[str, frozenset[str]] = {}
    while known != found:
        known = dict(found)
        for processor in app.processors.values():
            behind = frozenset[str]().union(*(found[table.name] for table in processor.tables))
            if processor.foreign_key is not None:
                behind |= {processor.foreign_key.join.answers.topic}
            for item in processor.others:
                if isinstance(item, Stored):
                    found[item.name] |= behind
    return found


def ranks(app: App) -> dict[str, int]:
    """Of the topics of messages: how many joins in a row each is behind, so that what a join answers comes before what follows from
    it. Of an app whose stages have an order."""
    messages = messages_of(app)
    joins = [one.foreign_key.join for one in app.processors.values() if one.foreign_key is not None]
    own = {topic.topic: join.name for join in joins for topic in (join.subscriptions, join.answers)}

    def rank(topic: str) -> int:
        return max((rank(one) + (own[one] != own[topic]) for one in messages[topic]), default=1)

    return {topic: rank(topic) for topic in messages}


def of_batches(app: App) -> set[str]:
    """Topics that functions of batches send to: the time of such a record may be that of the last of its batch."""
    batches = [processor for processor in app.processors.values() if processor.batch]
    return {topic.topic for processor in batches for topic in processor.sinks}


def in_order_at_one_time(app: App, sub: Subtopology) -> list[str]:
    """The sources of a subtopology in the order of their records of one time: the messages of joins come after what they may
    answer, and those of a join after those that it follows from."""
    rank = ranks(app)
    return sorted(sub.sources, key=lambda name: (rank.get(name, 0), name))


def stages(
    app_id: str,
    subtopologies: Sequence[Subtopology],
    rekeyed: Collection[str],
    followed: Collection[str],
    messages: Mapping[str, frozenset[str]],
) -> list[Subtopology]:
    """Subtopologies in the order of their stages; one with messages that come back to it is there several times.

    `rekeyed`: topics of re-keys, final once their subtopology has run; `followed`: outputs that the app reads itself, final
    when their subtopologies are. Raises WrongUse where outputs, or the messages of joins, go in a circle.
    """
    computed = {*rekeyed, *followed} - set(messages)
    writers = {name: [sub for sub in subtopologies if name in sub.sinks] for name in computed}
    after = {
        **dict.fromkeys(rekeyed, frozenset[str]()),
        **messages,
    }  # what each is final after, where its writer has run
    progress, found = _Progress(), list[Subtopology]()
    left = list(subtopologies)
    while left:
        chosen = _next(left, computed, messages, after, progress)
        if chosen is None:
            raise WrongUse(f"app '{app_id}': {_circle(left, computed, messages, progress)}")
        found.append(chosen)
        read = frozenset(name for name in chosen.sources if name in messages and name in progress.final)
        progress.read[chosen.number] = read
        progress.final |= _made_final(chosen, after, progress)
        left = [sub for sub in left if not _is_done(sub, messages, progress)]
        progress.final |= {name for name in followed if not any(sub in left for sub in writers.get(name, ()))}
    return found


def _next(
    left: Sequence[Subtopology],
    computed: Collection[str],
    messages: Mapping[str, frozenset[str]],
    after: Mapping[str, frozenset[str]],
    progress: _Progress,
) -> Subtopology | None:
    """The next stage: one that need not run again if there is one, else one that makes messages or re-keys final."""
    ready = [sub for sub in left if all(name in progress.final for name in sub.sources if name in computed)]
    for sub in ready:
        if all(name in progress.final for name in sub.sources if name in messages):
            return sub
    for sub in ready:
        if _made_final(sub, after, progress) - progress.final:
            return sub
    return None


def _circle(
    left: Sequence[Subtopology], computed: Collection[str], messages: Collection[str], progress: _Progress
) -> str:
    waits = {name for sub in left for name in sub.sources if name not in progress.final}
    if outputs := sorted(waits.intersection(computed)):
        return (
            f"{', '.join(outputs)} is read by the subtopology that writes it; backfill cannot order that: "
            "read it in a processor of its own"
        )
    return (
        f"{', '.join(sorted(waits.intersection(messages)))}, between the sides of foreign-key joins, may follow from themselves: "
        "a function takes a table that such a join writes, and one of its sides, which it may write; Spark cannot order that: let them "
        "take tables of their own"
    )


def _made_final(sub: Subtopology, after: Mapping[str, frozenset[str]], progress: _Progress) -> set[str]:
    """What a subtopology sends that is final when it has run now."""
    return {name for name in sub.sinks if name in after and after[name] <= progress.final}


def _is_done(sub: Subtopology, messages: Mapping[str, frozenset[str]], progress: _Progress) -> bool:
    return progress.read.get(sub.number) == frozenset(name for name in sub.sources if name in messages)
