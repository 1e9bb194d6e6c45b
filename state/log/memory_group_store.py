"""The facts of groups in memory: leases, owner records, metadata. Half of `state.log.memory.MemoryLog`.

One rule: as on every log, what is written under a lease is refused once a newer term holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from state.errors import LeaseLost
from state.log import checks
from state.log.group_store import Lease, MetadataKind, OwnerRecord
from state.log.protocol import LeftOpen


class MemoryGroupStore:
    """See `state.log.group_store.GroupStore`."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, OwnerRecord]] = {}
        self._fenced: set[tuple[str, str]] = set()
        self._leases: dict[str, Lease] = {}
        self._metadata: dict[tuple[str, str], dict[str, bytes]] = {}

    def wake(self) -> None:
        """Have those look again that wait for a change."""

    async def lease(self, application: str) -> Lease | None:
        return self._leases.get(application)

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        found = self._leases.get(application)
        if found != seen:
            return None
        made = Lease(application, found.term + 1 if found else 1, holder, address, 0)
        self._leases[application] = made
        return made

    async def renew(self, lease: Lease) -> Lease:
        found = self.check_lease(lease)
        made = replace(found, beat=found.beat + 1)
        self._leases[lease.application] = made
        return made

    def check_lease(self, lease: Lease) -> Lease:
        """Returns the lease as it is kept. Raises LeaseLost."""
        found = self._leases.get(lease.application)
        if found is None or (found.term, found.holder) != (lease.term, lease.holder):
            raise LeaseLost(checks.lease_lost(lease, found))
        return found

    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        return dict(sorted(self._owners.get(application, {}).items()))

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        self.check_lease(lease)
        self._owners.setdefault(lease.application, {}).update({record.scope: record for record in records})

    async def fence(self, lease: Lease, transactional_ids: Collection[str]) -> dict[str, frozenset[str]]:
        checks.ids_to_fence(transactional_ids)
        self.check_lease(lease)
        owners = self._owners.get(lease.application, {})
        had: dict[str, frozenset[str]] = {}
        for fenced in transactional_ids:
            self._fenced.add((lease.application, fenced))
            scopes = [scope for scope, record in owners.items() if record.transactional_id == fenced]
            for scope in scopes:
                owners[scope] = replace(
                    owners[scope], epoch=owners[scope].epoch + 1, transactional_id="", term=lease.term
                )
            had[fenced] = frozenset(scopes)
        return had

    async def end_left_open(self, lease: Lease, transactional_ids: Mapping[str, int]) -> LeftOpen:
        """A process in memory stands still with all others."""
        return LeftOpen({}, [])

    async def metadata(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        return self.kept(application, kind).get(key)

    async def metadata_of(self, application: str, kind: MetadataKind, *, settled: bool = False) -> dict[str, bytes]:
        return dict(sorted(self.kept(application, kind).items()))

    async def metadata_of_all(self, kind: MetadataKind, key: str) -> dict[str, bytes]:
        found = {app: kept[key] for (app, name), kept in self._metadata.items() if name == kind.name and key in kept}
        return dict(sorted(found.items()))

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        checks.author(kind, lease)
        if lease is not None:
            self.check_lease(lease)
        self.keep_metadata(application, kind, key, value)
        self.wake()

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        checks.author(kind, None)
        if self.kept(application, kind).get(key) != seen:
            return False
        self.keep_metadata(application, kind, key, value)
        self.wake()
        return True

    def kept(self, application: str, kind: MetadataKind) -> dict[str, bytes]:
        return self._metadata.get((application, kind.name), {})

    def keep_metadata(self, application: str, kind: MetadataKind, key: str, value: bytes | None) -> None:
        kept = self._metadata.setdefault((application, kind.name), {})
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value
