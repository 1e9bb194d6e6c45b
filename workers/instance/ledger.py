"""The coordinator's ledger on the log: joins orchestrator.ledger and state.log.

One rule: the lease guards each write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from orchestrator.coordinator.ledger import NotCoordinator
from orchestrator.group.scale_down import ScaleDowns
from orchestrator.model import Owner, TaskId
from state.errors import LeaseLost
from state.log.group_store import GroupStore, Lease, MetadataKind, OwnerRecord
from state.log.protocol import GroupLog, LeftOpen

OPERATION, GENERATION = (MetadataKind(name, under_lease=True) for name in ("operation", "generation"))
SETTINGS = MetadataKind("settings", under_lease=True)
LEASE, GIVEN_BACK = MetadataKind("lease", under_lease=True), "given back"
MEMBERS, LEAVERS = "members", "leavers"


async def is_given_back(store: GroupStore, lease: Lease | None) -> bool:
    """Whether the holder ended in order: no beat of it will come, and none is waited for."""
    if lease is None:
        return False
    return await store.metadata(lease.application, LEASE, GIVEN_BACK) == str(lease.term).encode()


async def give_back(store: GroupStore, lease: Lease) -> None:
    """Note that no further beat of this lease will come; the holder's last write. Raises LeaseLost."""
    await store.put_metadata(lease.application, LEASE, GIVEN_BACK, str(lease.term).encode(), lease=lease)


async def kept_settings(store: GroupStore, application: str) -> dict[str, str]:
    """The settings that were set for the group while it ran, as text by name."""
    found: dict[str, str] = json.loads(await store.metadata(application, SETTINGS, SETTINGS.name) or b"{}")
    return found


async def kept_scale_downs(store: GroupStore, application: str) -> ScaleDowns:
    """As they were written down."""
    kept = await store.metadata_of(application, OPERATION)
    leavers = json.loads(kept.get(LEAVERS, b"{}"))
    if not (found := kept.get("scale-down")):
        return ScaleDowns((), leavers)
    first = json.loads(found)
    return ScaleDowns([first, *first.pop("beside", ())], leavers)


class LogLedger:
    """Owner records, fences and operations of one application under one lease."""

    def __init__(self, log: GroupLog, lease: Lease) -> None:
        self._log = log
        self._lease = lease
        self._members: frozenset[str] = frozenset()  # of the last generation that is written down
        self.term = lease.term

    async def renew(self) -> None:
        try:
            self._lease = await self._log.renew(self._lease)
        except LeaseLost as error:
            raise NotCoordinator(str(error)) from error

    async def owners(self) -> Sequence[Owner]:
        found = await self._log.owners(self._lease.application)
        return [Owner(TaskId.parse(o.scope), o.epoch, o.member, o.transactional_id, o.term) for o in found.values()]

    async def record_owners(self, records: Sequence[Owner]) -> None:
        rows = [OwnerRecord(str(r.task), r.epoch, r.member, r.writer, r.term) for r in records]
        try:
            await self._log.record_owners(self._lease, rows)
        except LeaseLost as error:
            raise NotCoordinator(str(error)) from error

    async def fence(self, writer: str) -> tuple[TaskId, ...]:
        try:
            return tuple(
                sorted(TaskId.parse(scope) for scope in (await self._log.fence(self._lease, [writer]))[writer])
            )
        except LeaseLost as error:
            raise NotCoordinator(str(error)) from error

    async def end_left_open(self, writers: Mapping[str, int]) -> LeftOpen:
        """See `Log.end_left_open`. Raises NotCoordinator, StateError."""
        try:
            return await self._log.end_left_open(self._lease, writers)
        except LeaseLost as error:
            raise NotCoordinator(str(error)) from error

    async def generation(self) -> tuple[int, frozenset[str]]:
        application = self._lease.application
        found = await self._log.metadata(application, GENERATION, GENERATION.name)
        members = await self._log.metadata(application, GENERATION, MEMBERS)
        self._members = frozenset(json.loads(members or b"[]"))
        return int(found or 0), self._members

    async def put_generation(self, generation: int, members: frozenset[str]) -> None:
        if members != self._members:  # a row of its own: versions that know of none read the number
            await self._put(GENERATION, MEMBERS, json.dumps(sorted(members)).encode())
            self._members = members
        await self._put(GENERATION, GENERATION.name, b"%d" % generation)

    async def scale_downs(self) -> ScaleDowns:
        return await kept_scale_downs(self._log, self._lease.application)

    async def put_operations(self, facts: Sequence[Mapping[str, object]]) -> None:
        # One alone is written as ever: versions that know of one at a time go on with the first.
        first = {**facts[0], "beside": facts[1:]} if len(facts) > 1 else facts[0] if facts else None
        await self._put(OPERATION, "scale-down", None if first is None else json.dumps(first).encode())

    async def put_leavers(self, leavers: Mapping[str, str]) -> None:
        # A row of its own: versions that know of none read those that run alone.
        await self._put(OPERATION, LEAVERS, json.dumps(dict(leavers)).encode() if leavers else None)

    async def settings(self) -> Mapping[str, str]:
        return await kept_settings(self._log, self._lease.application)

    async def put_settings(self, settings: Mapping[str, str]) -> None:
        await self._put(SETTINGS, SETTINGS.name, json.dumps(dict(settings)).encode() if settings else None)

    async def _put(self, kind: MetadataKind, key: str, value: bytes | None) -> None:
        try:
            await self._log.put_metadata(self._lease.application, kind, key, value, lease=self._lease)
        except LeaseLost as error:
            raise NotCoordinator(str(error)) from error
