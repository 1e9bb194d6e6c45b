"""Records as batches that their topics take: what a broker would refuse is refused here, before any record is sent.

One rule: a record that is too large, or that a changelog cannot hold, is named by the error, and nothing of its call is in the log.
A commit is built while its transaction is opened (`Unbuilt`), any other write before it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from state.errors import UnfitRecord
from state.log import batches, checks
from state.log.batches import Batch
from state.log.kafka.connections import ANSWER_WITHIN_S
from state.log.kafka.short_lived import ShortLived
from state.log.kafka.topics import Purpose, Topics
from state.log.kafka.unbuilt import Built, Unbuilt
from state.log.protocol import NewRecord, Partition, Parts, TaskCommit, TopicInfo

T = TypeVar("T")
M = TypeVar("M")
_ANY_NUMBER = 1 << 30


async def by_present_settings(
    topics: Topics, make: Callable[[], Awaitable[M]], write: Callable[[M], Awaitable[T]]
) -> T:
    """Writes what `make` builds, or what is built while it is written. What does not fit is built once more by the settings that its
    topic has now: they may have been changed since this process has asked for them, in either direction. Raises UnfitRecord by those
    alone."""
    try:
        return await write(await make())
    except UnfitRecord as error:
        topics.forget_purpose(error.partition[0])
    return await write(await make())


async def build(
    topics: Topics, records: Mapping[Partition, Sequence[NewRecord]], within_s: float = ANSWER_WITHIN_S
) -> dict[Partition, list[Batch]]:
    """`within_s`: how long brokers are asked where the topics are. Raises UnknownTopic, RecordTooLarge, InvalidRecord."""
    await topics.require(records.keys(), within_s)
    return _built(topics, records, await topics.purposes({partition.topic for partition in records}))


def _built(
    topics: Topics, records: Mapping[Partition, Sequence[NewRecord]], purposes: Mapping[str, Purpose]
) -> dict[Partition, list[Batch]]:
    built: dict[Partition, list[Batch]] = {}
    for partition, listed in records.items():
        kind, most = purposes[partition.topic].kind, purposes[partition.topic].max_message_bytes
        checks.keys(TopicInfo(partition.topic, "", 1, kind), partition, listed)
        if listed:
            cut = min(most, topics.batch_bytes or most)
            built[partition] = batches.build(listed, most, cut_bytes=cut, cut_records=_ANY_NUMBER, codec=topics.codec)
            batches.check_sizes(partition, built[partition], most)
    return built


async def build_parts(topics: Topics, parts: Parts) -> AsyncIterator[dict[Partition, list[Batch]]]:
    """`build` of one part after the other. Raises the same, and what `parts` raises."""
    made = iter(await asyncio.to_thread(parts))
    while (part := await asyncio.to_thread(next, made, None)) is not None:
        yield await build(topics, part)


async def unbuilt(topics: Topics, tasks: Sequence[TaskCommit], short_lived: ShortLived) -> Unbuilt:
    """The records of all tasks; `short_lived` looks at what is built. Raises UnknownTopic; to make it raises UnfitRecord, which names the scope."""
    records = checks.merged(tasks)
    await topics.require(records.keys())
    purposes = await topics.purposes({partition.topic for partition in records})

    def make() -> Built:
        try:
            built = _built(topics, records, purposes)
        except UnfitRecord as error:
            raise checks.of_scope(error, tasks) from None
        short_lived.look(built, purposes)
        return built

    return Unbuilt([partition for partition, listed in records.items() if listed], make)
