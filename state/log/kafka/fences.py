"""Fences of the coordinator: transactional ids of workers that may commit nothing any more.

One rule: the record first, then the id is initialised, which ends what it has open, and its owner records last: who opens an id sees
the one or the other. An id whose transaction alone is ended keeps its owner records: its tasks wait for their disk. Used by KafkaLog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from state.errors import LogUnavailable, LogUnusable
from state.log.group_store import Lease
from state.log.kafka import facts
from state.log.kafka.facts_topic import FactsTopic
from state.log.kafka.lease import Leases
from state.log.kafka.writers import Writers
from state.log.protocol import LeftOpen, NewRecord


class Fences:
    """Of one process. `topic`: the application's facts."""

    def __init__(self, leases: Leases, writers: Writers) -> None:
        self._leases = leases
        self._writers = writers

    async def fence(
        self, topic: FactsTopic | None, lease: Lease, transactional_ids: Collection[str]
    ) -> dict[str, frozenset[str]]:
        """See `Log.fence`. Raises LeaseLost."""
        await self._end(topic, lease, transactional_ids)
        had: dict[str, frozenset[str]] = {}

        def without_owner() -> list[NewRecord]:
            owners = topic.view.owners() if topic is not None else {}
            lost = [one for one in owners.values() if one.transactional_id in transactional_ids]
            had.update(
                {
                    fenced: frozenset(one.scope for one in lost if one.transactional_id == fenced)
                    for fenced in transactional_ids
                }
            )
            return [
                facts.owner_record(replace(one, epoch=one.epoch + 1, transactional_id="", term=lease.term))
                for one in lost
            ]

        await self._leases.write(topic, lease, without_owner)
        return had

    async def end_left_open(self, topic: FactsTopic | None, lease: Lease, seen: Mapping[str, int]) -> LeftOpen:
        """See `Log.end_left_open`. Raises LeaseLost, and what a look at a transaction raises."""
        found = await self._writers.open_since(lease.application, seen)
        left = [one for one, since_ms in found.items() if since_ms == seen[one]]
        if left:
            await self._end(topic, lease, left)
        return LeftOpen({one: since_ms for one, since_ms in found.items() if one not in left}, left)

    async def _end(self, topic: FactsTopic | None, lease: Lease, transactional_ids: Collection[str]) -> None:
        marks = [facts.fenced_record(one, lease.term) for one in transactional_ids]
        await self._leases.write(
            topic, lease, lambda: [*marks, *(topic.view.long_fenced(transactional_ids) if topic is not None else ())]
        )
        ending = [self._writers.producer(lease.application, one).initialise() for one in transactional_ids]
        try:
            await asyncio.gather(*ending)
        except (LogUnusable, LogUnavailable) as error:
            raise self._leases.given_up(lease, error) from error
