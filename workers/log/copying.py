"""Records of one log into another, in their order, with times and headers; and where a position of the one lies in the other.

One rule: what is there already decides. Records that the target has are compared, never written again, so a copy that ended
half way goes on, and one that meets other records than the source's is refused. Of a changelog the last value of each key
counts, since a log may compact what it has at any time. Used by `orchestrator log copy`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from hashlib import blake2b

from orchestrator.errors import OrchestratorError, RefusedBySafety
from state.errors import UnfitRecord
from state.log.batches import decode
from state.log.protocol import Log, NewRecord, Partition, StoredRecord

CHUNK = 1_000
_WAIT_MS = 500


async def records_of(log: Log, partition: Partition) -> AsyncGenerator[StoredRecord, None]:
    """All that is committed now, transactions that are open waited for."""
    end = (await log.ends([partition], settled=True))[partition]
    position = (await log.starts([partition]))[partition]
    if position >= end:
        return
    reader = log.reader()
    try:
        reader.add(partition, position)
        while position < end:
            for found in await reader.poll(wait_ms=_WAIT_MS):
                if found.data:
                    for record in decode(found.data, found.position):
                        if record.offset < end:
                            yield record
                position = found.next_position
    finally:
        await reader.close()


class _Writing:
    """Records of one partition, written in chunks."""

    def __init__(self, log: Log, partition: Partition) -> None:
        self._log = log
        self._partition = partition
        self._chunk: list[NewRecord] = []
        self.written = 0

    async def add(self, record: StoredRecord) -> None:
        self._chunk.append(NewRecord(record.key, record.value, record.timestamp_ms, record.headers))
        if len(self._chunk) == CHUNK:
            await self.end()

    async def end(self) -> None:
        if self._chunk:
            try:
                await self._log.append({self._partition: self._chunk})
            except UnfitRecord as error:
                raise OrchestratorError(
                    f"{self._partition} cannot be copied: {error.what}. What was copied before it stays: change that setting of "
                    "the topic on the target, and run the same command again"
                ) from None
        self.written += len(self._chunk)
        self._chunk = []


async def append_missing(source: Log, target: Log, partition: Partition) -> int:
    """Writes what the target lacks of the source's records; how many. Raises RefusedBySafety where the target has others."""
    writing, is_behind = _Writing(target, partition), False
    async with aclosing(records_of(target, partition)) as there:
        async for record in records_of(source, partition):
            other = None if is_behind else await anext(there, None)
            if other is None:
                is_behind = True  # all of the target has been compared
                await writing.add(record)
            else:
                _refuse_other(partition, record, other)
    await writing.end()
    return writing.written


async def append_all(source: Log, target: Log, partition: Partition) -> int:
    """Writes all of the source's records behind what the target has; how many. For a changelog: the last value counts."""
    writing = _Writing(target, partition)
    async for record in records_of(source, partition):
        await writing.add(record)
    await writing.end()
    return writing.written


async def has_equal_values(source: Log, target: Log, partition: Partition) -> bool:
    """Whether a changelog says the same of each key in both logs."""
    return await _values(source, partition) == await _values(target, partition)


async def _values(log: Log, partition: Partition) -> dict[bytes, bytes]:
    """A digest of the last value of each key, those without a value left out."""
    found: dict[bytes, bytes] = {}
    async for record in records_of(log, partition):
        key = record.key or b""
        if record.value is None:
            found.pop(key, None)
        else:
            found[key] = blake2b(record.value, digest_size=16).digest()
    return found


async def placed(source: Log, target: Log, partition: Partition, positions: Collection[int]) -> Mapping[int, int]:
    """Where each of these positions of the source lies in the target: at the record that is the first behind it there, or at
    the end. Compares all records on the way. Raises RefusedBySafety where one differs or is missing."""
    left = sorted(positions)
    found: dict[int, int] = {}
    async with aclosing(records_of(target, partition)) as there:
        async for record in records_of(source, partition):
            other = await anext(there, None)
            if other is None:
                raise RefusedBySafety(
                    f"{partition}: record {record.offset} is missing in the copy; run the command again"
                )
            _refuse_other(partition, record, other)
            while left and left[0] <= record.offset:
                found[left.pop(0)] = other.offset
        if left:
            other = await anext(there, None)  # of a topic that goes on in the target
            end = (await target.ends([partition], settled=True))[partition] if other is None else other.offset
            found |= dict.fromkeys(left, end)
    return found


def _refuse_other(partition: Partition, record: StoredRecord, other: StoredRecord) -> None:
    if (record.key, record.value, record.timestamp_ms, record.headers) != (
        other.key,
        other.value,
        other.timestamp_ms,
        other.headers,
    ):
        raise RefusedBySafety(
            f"{partition} in the target has another record at {other.offset} than the source at {record.offset}: it is not "
            "a copy of it; name another target, or put a prefix before its topics (kafka://HOST:PORT?prefix=NAME-)"
        )
