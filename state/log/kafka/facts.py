"""An application's facts as records of a compacted topic, and the view that reading them gives. Pure.

One rule: a fact is its last record. Partition 0 holds what is written under the lease (the lease itself, owner records,
fenced transactional ids, the seed that is being written, the coordinator's metadata), partition 1 what every process may
write; so no other writer's open transaction can ever hide the coordinator's records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from state.clocks import wall_ms
from state.errors import LogDamaged
from state.log.group_store import Lease, MetadataKind, OwnerRecord
from state.log.protocol import NewRecord, Partition

UNDER_LEASE, EVERYBODYS = 0, 1
PARTITIONS = 2
TOPIC_SUFFIX = "-orchestrator"
LEASE = "lease"
SEED = "seed"
_OWNER, _FENCED, _METADATA = "owner/", "fenced/", "metadata/"
# Brokers forget an id that was idle for a week (transactional.id.expiration.ms), and who had it owns nothing any more.
FENCED_KEPT_MS = 30 * 24 * 3_600_000
FORGOTTEN_AT_ONCE = 100


class _LeaseFact(msgspec.Struct, frozen=True):
    term: int
    holder: str
    address: str
    beat: int
    transactional_id: str


class _OwnerFact(msgspec.Struct, frozen=True):
    epoch: int
    member: str
    transactional_id: str
    term: int


class Seed(msgspec.Struct, frozen=True):
    """The transaction of a seed: the id that writes it, and whether it is committed, which its own last record says."""

    transactional_id: str
    committed: bool = False


_Fact = TypeVar("_Fact", _LeaseFact, _OwnerFact, Seed)


def topic_of(application: str) -> str:
    return application + TOPIC_SUFFIX


def partition_of(application: str, kind: MetadataKind) -> Partition:
    """Where metadata of a kind is kept."""
    return Partition(topic_of(application), UNDER_LEASE if kind.under_lease else EVERYBODYS)


def _record(key: str, value: bytes | None) -> NewRecord:
    return NewRecord(key.encode(), value, wall_ms())


def lease_record(lease: Lease) -> NewRecord:
    fact = _LeaseFact(lease.term, lease.holder, lease.address, lease.beat, lease.transactional_id)
    return _record(LEASE, msgspec.json.encode(fact))


def owner_record(owner: OwnerRecord) -> NewRecord:
    fact = _OwnerFact(owner.epoch, owner.member, owner.transactional_id, owner.term)
    return _record(_OWNER + owner.scope, msgspec.json.encode(fact))


def fenced_record(transactional_id: str, term: int) -> NewRecord:
    return _record(_FENCED + transactional_id, b"%d %d" % (term, wall_ms()))


def seed_record(seed: Seed | None) -> NewRecord:
    """None: there is none that could be open."""
    return _record(SEED, None if seed is None else msgspec.json.encode(seed))


def metadata_record(kind: MetadataKind, key: str, value: bytes | None) -> NewRecord:
    """None removes the value."""
    return _record(f"{_METADATA}{kind.name}/{key}", value)


@dataclass(slots=True)
class View:
    """The facts of an application as far as they were read. Own records may be applied before they are read back: of two
    records of a key the one with the higher offset counts."""

    application: str
    _found: tuple[dict[str, tuple[int, bytes | None]], ...] = field(
        default_factory=lambda: tuple({} for _ in range(PARTITIONS))
    )
    _behind: list[int] = field(default_factory=lambda: [0] * PARTITIONS)  # the last record that was read
    _owners: dict[str, OwnerRecord | LogDamaged] = field(default_factory=dict)

    def apply(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """A record that was read, in the order of the log. One that is no fact is the error of who asks for that fact, until another
        record of its key comes. Nothing is kept of a fact that was removed: no older record of it is read any more."""
        name = (key or b"").decode(errors="replace")
        self._behind[partition] = offset + 1
        self._apply(partition, offset, name, value)
        if self._found[partition][name] == (offset, None):
            del self._found[partition][name]

    def _apply(self, partition: int, offset: int, name: str, value: bytes | None) -> None:
        kept = self._found[partition]
        if name in kept and kept[name][0] > offset:
            return
        kept[name] = (offset, value)
        if partition == UNDER_LEASE and name.startswith(_OWNER):
            scope = name.removeprefix(_OWNER)
            if value is None:
                self._owners.pop(scope, None)
            else:
                self._owners[scope] = self._owner(scope, value)

    def _owner(self, scope: str, value: bytes) -> OwnerRecord | LogDamaged:
        try:
            fact = self._decode(_OWNER + scope, value, _OwnerFact)
        except LogDamaged as error:
            return error
        return OwnerRecord(scope, fact.epoch, fact.member, fact.transactional_id, fact.term)

    def apply_own(self, partition: int, behind: int, records: Iterable[NewRecord]) -> None:
        """Records of one write whose last one lies before `behind`."""
        listed = list(records)
        for offset, record in enumerate(listed, behind - len(listed)):
            if offset >= self._behind[partition]:  # else it was read back already, with all that is written behind it
                self._apply(partition, offset, (record.key or b"").decode(errors="replace"), record.value)

    def lease(self) -> Lease | None:
        value = self._value(UNDER_LEASE, LEASE)
        if value is None:
            return None
        fact = self._decode(LEASE, value, _LeaseFact)
        return Lease(self.application, fact.term, fact.holder, fact.address, fact.beat, fact.transactional_id)

    def owners(self) -> dict[str, OwnerRecord]:
        """Raises LogDamaged."""
        for found in self._owners.values():
            if isinstance(found, LogDamaged):
                raise LogDamaged(str(found)) from found
        return {scope: found for scope, found in sorted(self._owners.items()) if isinstance(found, OwnerRecord)}

    def owner(self, scope: str) -> OwnerRecord | None:
        """None also for one that cannot be read: its task is given up, and the coordinator, who knows it, writes it anew."""
        found = self._owners.get(scope)
        return found if isinstance(found, OwnerRecord) else None

    def is_fenced(self, transactional_id: str) -> bool:
        return self._value(UNDER_LEASE, _FENCED + transactional_id) is not None

    def long_fenced(self, fenced_again: Collection[str] = ()) -> list[NewRecord]:
        """What removes ids that were fenced so long ago that nobody can have them any more, some at a time; but for those that are being
        fenced again."""
        before_ms, found = wall_ms() - FENCED_KEPT_MS, list[NewRecord]()
        for name, (_, value) in self._found[UNDER_LEASE].items():
            if value is None or not name.startswith(_FENCED) or name.removeprefix(_FENCED) in fenced_again:
                continue
            _, _, at_ms = value.partition(b" ")
            if at_ms.isdigit() and int(at_ms) < before_ms:
                found.append(_record(name, None))
        return found[:FORGOTTEN_AT_ONCE]

    def seed(self) -> Seed | None:
        value = self._value(UNDER_LEASE, SEED)
        return None if value is None else self._decode(SEED, value, Seed)

    def metadata(self, kind: MetadataKind, key: str) -> bytes | None:
        return self._value(UNDER_LEASE if kind.under_lease else EVERYBODYS, f"{_METADATA}{kind.name}/{key}")

    def metadata_of(self, kind: MetadataKind) -> dict[str, bytes]:
        prefix = f"{_METADATA}{kind.name}/"
        kept = self._found[UNDER_LEASE if kind.under_lease else EVERYBODYS]
        found = {name.removeprefix(prefix): value for name, (_, value) in kept.items() if name.startswith(prefix)}
        return {key: value for key, value in sorted(found.items()) if value is not None}

    def _value(self, partition: int, name: str) -> bytes | None:
        return self._found[partition].get(name, (0, None))[1]

    def _decode(self, name: str, value: bytes, what: type[_Fact]) -> _Fact:
        try:
            return msgspec.json.decode(value, type=what)
        except msgspec.MsgspecError as error:
            raise LogDamaged(
                f"topic {topic_of(self.application)} holds a record of key {name} that cannot be read ({error}): it was written "
                "by a newer version, or by something else; update this one, or stop the app, write a record of that key without a "
                f"value to partition {UNDER_LEASE} (kafka-console-producer), and start it again"
            ) from error
