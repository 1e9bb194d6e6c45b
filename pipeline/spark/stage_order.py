"""The order in which the subtopologies of an app are computed. One rule: a stage reads what is final, or is computed again.

What one subtopology sends another is final when all that it follows from is. Messages of a join by foreign key go both ways:
subscriptions follow from the left table alone, answers from the subscriptions and the right table, so the left subtopology is
computed once for the subscriptions and once more with the answers. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.definitions.topology import Subtopology


@dataclass
class _Progress:
    """How far the stages have come: topics that are final, and of each subtopology the final messages that it has read."""

    final: set[str] = field(default_factory=set)
    read: dict[int, frozenset[str]] = field(default_factory=dict)


def messages_of(app: App) -> dict[str, frozenset[str]]:
    """The topics of messages between the sides of joins, and which others of them each follows from."""
    found: dict[str, frozenset[str]] = {}
    for processor in app.processors.values():
        if processor.foreign_key is not None:
            join = processor.foreign_key.join
            found[join.subscriptions.topic] = frozenset()
            found[join.answers.topic] = frozenset([join.subscriptions.topic])
    return found


def of_batches(app: App) -> set[str]:
    """Topics that functions of batches send to: the time of such a record may be that of the last of its batch."""
    batches = [processor for processor in app.processors.values() if processor.batch]
    return {topic.topic for processor in batches for topic in processor.sinks}


def in_order_at_one_time(app: App, sub: Subtopology) -> list[str]:
    """The sources of a subtopology in the order of their records of one time: the messages of joins come after what they may
    answer."""
    messages = messages_of(app)
    return sorted(sub.sources, key=lambda name: (name in messages, name))


def stages(
    app_id: str,
    subtopologies: Sequence[Subtopology],
    rekeyed: Collection[str],
    followed: Collection[str],
    messages: Mapping[str, frozenset[str]],
) -> list[Subtopology]:
    """Subtopologies in the order of their stages; one with messages that come back to it is there several times.

    `rekeyed`: topics of re-keys, final once their subtopology has run; `followed`: outputs that the app reads itself, final
    when their subtopologies are. Raises WrongUse where outputs go in a circle.
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
            waits = {name for sub in left for name in sub.sources if name in computed and name not in progress.final}
            names = ", ".join(sorted(waits))
            raise WrongUse(
                f"app '{app_id}': {names} is read by the subtopology that writes it; backfill cannot order that: "
                "read it in a processor of its own"
            )
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


def _made_final(sub: Subtopology, after: Mapping[str, frozenset[str]], progress: _Progress) -> set[str]:
    """What a subtopology sends that is final when it has run now."""
    return {name for name in sub.sinks if name in after and after[name] <= progress.final}


def _is_done(sub: Subtopology, messages: Mapping[str, frozenset[str]], progress: _Progress) -> bool:
    return progress.read.get(sub.number) == frozenset(name for name in sub.sources if name in messages)
