"""Topics that grow while the app runs: a worker looks now and then, and goes by the new counts. It ends where one that the app
rests on was deleted and created again: a task that moves would be restored from a changelog that is empty. And it ends where an
input grew by whose count state lies: records would be counted where the state of their key is not.

One rule: the count of a topic that decides where state lies never changes while the app runs. Everything else follows
the log: what is sent goes to the new partitions, and the tasks that read them are reported to the group by every worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.errors import OrchestratorError
from state.errors import PositionOutOfRange, StateError, UnknownTopic
from state.log.protocol import Partition, TopicInfo
from workers import topic_identities
from workers.prepare import Prepared
from workers.same_topics import loses, problem
from workers.worker.ports import GrowthPort

log = logging.getLogger("orchestrator.growth")
LOOK_MAX_S, EXPLAIN_S = 1.0, 5.0
WHEN = "while the app ran"
LOOKS = 10  # that do not find a topic: it was deleted. A broker that has just come back may not know all for a moment


async def run(worker: GrowthPort) -> None:
    """Look once a heartbeat, and at least every second, until cancelled."""
    pause = min(LOOK_MAX_S, worker.spec.instance.settings.heartbeat_ms / 1000)
    warned: set[str] = set()
    missed = 0  # looks, one behind the other, that did not find a topic
    while True:
        await worker.pulse.next(pause)
        try:
            found = await worker.log.topics(list(worker.prepared.topics))
        except StateError as error:  # the loops that read and write it report it
            log.debug("topics: %s", error)
            continue
        strange = others(worker.prepared, found)
        missed = missed + 1 if strange.keys() - found.keys() else 0
        if ended := [error for name, error in strange.items() if name in found or missed == LOOKS]:
            worker.crashed(ended[0])
            return
        for line in sorted(set(ignored(worker.prepared, found)) - warned):
            warned.add(line)
            log.warning(line)
        prepared = seen_again(worker.prepared, found)
        if prepared is not worker.prepared:
            worker.topics_grew(prepared)


def others(prepared: Prepared, found: Mapping[str, TopicInfo]) -> dict[str, OrchestratorError]:
    """What to end with, by topic that is gone or another than the one that the app rests on."""
    whole = {table.of.topic for table in prepared.app.globals.values()}
    reasons = {
        name: problem(name, info.topic_id, found.get(name), prepared.topology, WHEN)
        or (name in whole and _of_a_global_table(name, info.topic_id, found.get(name)))
        for name, info in sorted(prepared.topics.items())
    }
    grown = {name: _by_another_number(prepared, info) for name, info in _grown(prepared, found).items()}
    return {
        name: OrchestratorError(f"'{prepared.app.id}': {reason}")
        for name, reason in {**reasons, **grown}.items()
        if reason
    }


def _by_another_number(prepared: Prepared, info: TopicInfo) -> str:
    """An input whose count is bound: its producers lay records by the new count, as soon as they hear of it. Re-keys and changelogs are
    written by this app alone, which keeps to what it knows."""
    if _is_own(prepared, info.name) or info.name not in bound(prepared):
        return ""
    return (
        f"topic {info.name} was given {info.partitions} partitions {WHEN}, and state lies by {prepared.topics[info.name].partitions}: records would "
        "be counted where the state of their key is not, so none is processed from here on. `orchestrator repartition MODULE:APP "
        f"--to {info.partitions}` moves the state to where it belongs by that number; start the app then"
    )


def _of_a_global_table(name: str, topic_id: str, info: TopicInfo | None) -> str:
    """A start reads it whole, so it may be another one then."""
    if info is not None and info.topic_id == topic_id:
        return ""
    again = "" if info is None else " and created again"
    return f"topic {name} of a global table was deleted{again} {WHEN}: its rows are of the one before; start it again"


async def explained(worker: GrowthPort, error: UnknownTopic | PositionOutOfRange) -> Exception:
    """What a worker ends with that has found no topic, or not as much in it as it had read. A log that is away explains nothing, and the
    end does not wait for it."""
    prepared = worker.prepared
    try:
        async with asyncio.timeout(EXPLAIN_S):
            found = await worker.log.topics(list(prepared.topics))
            if reasons := others(prepared, found):
                return next(iter(reasons.values()))
            return await _lost(worker, error.partition[0]) or error if isinstance(error, PositionOutOfRange) else error
    except (StateError, TimeoutError):
        return error


async def _lost(worker: GrowthPort, topic: str) -> Exception | None:
    """Where the log has lost records of this input that the application has processed. Raises StateError."""
    application, info = worker.prepared.app.id, worker.prepared.topics[topic]
    partitions = [Partition(topic, number) for number in range(info.partitions)]
    positions = await worker.log.positions(application, partitions, settled=False)
    lost = await worker.log.lost(application, partitions, settled=False)
    text = topic_identities.lost_while_running(application, lost, positions)
    return OrchestratorError(f"'{application}': {text}") if lost else None


def seen_again(prepared: Prepared, found: Mapping[str, TopicInfo]) -> Prepared:
    """The same with the counts that topics have by now, where they may change; the very same where none does."""
    grown = {name: info for name, info in _grown(prepared, found).items() if name not in bound(prepared)}
    if not grown:
        return prepared
    topics = {**prepared.topics, **grown}
    counts = {name: info.partitions for name, info in topics.items()}
    return replace(prepared, topics=topics, topology=prepared.topology.with_partitions(counts))


def bound(prepared: Prepared) -> frozenset[str]:
    """Topics whose count decides where state or a re-keyed record lies: it stays what it was."""
    kept = {name for name in prepared.topics if _is_own(prepared, name)}
    together = (sub.sources for sub in prepared.topology.subtopologies if sub.tables or kept.intersection(sub.sources))
    return frozenset(kept.union(*together))


def _is_own(prepared: Prepared, name: str) -> bool:
    """A re-key topic or changelog of the app. An input may be compacted, too."""
    topic = prepared.topology.topics.get(name)
    return topic is not None and topic.kind != "plain"


def ignored(prepared: Prepared, found: Mapping[str, TopicInfo]) -> list[str]:
    """One line for each topic of the app's own that grew and must not have, or whose records the log would delete while they are needed."""
    grown = [
        f"topic {name} has {info.partitions} partitions now, and '{prepared.app.id}' keeps to the "
        f"{prepared.topics[name].partitions} by which its state lies: what others write to the rest is not read, and a "
        "start is refused; start over under another id, or with `orchestrator reset`"
        for name, info in _grown(prepared, found).items()
        if name in bound(prepared) and not _by_another_number(prepared, found[name])
    ]
    there = {name: topic for name, topic in sorted(prepared.topology.topics.items()) if name in found}
    losing = [fault for name, topic in there.items() if (fault := loses(topic.kind, found[name]))]
    return (
        grown
        + losing
        + [
            f"changelog {name} is not compacted any more: values are deleted with time, a task that moves is restored without them, and a "
            "start is refused; set its cleanup.policy to compact"
            for name, topic in there.items()
            if topic.kind == "changelog" and found[name].kind != "changelog"
        ]
    )


def _grown(prepared: Prepared, found: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
    """Topics of the app that have more partitions than it knows; one that was made anew is another topic."""
    return {
        name: found[name]
        for name, info in sorted(prepared.topics.items())
        if name in found and found[name].topic_id == info.topic_id and found[name].partitions > info.partitions
    }
