"""The GroupStore port: the coordinator's lease, the owner records and an application's metadata.

One rule: a fact has one kind of author. What is written under a lease is refused once a newer term holds it; what
every process may write is written with compare-and-set where two could write at once. SQLite and memory keep the facts beside
the records; on Kafka they are a compacted topic of the application, tailed by every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class MetadataKind:
    """A kind of metadata. `under_lease`: only the coordinator writes it, and every write names its lease; otherwise
    every process of the application may write it, and no write names one."""

    name: str
    under_lease: bool = False


class AppMetadata(NamedTuple):
    """A small durable fact of an application: subtopology numbers, an operation, the progress of a producer."""

    application: str
    kind: MetadataKind
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Who may write for a scope. `transactional_id` is never used again by another process; "" means that the scope is
    without an owner (fenced, or given up)."""

    scope: str
    epoch: int
    member: str
    transactional_id: str
    term: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The coordinator's lease of an application. `term` grows with every holder, `beat` with every renewal.

    Candidates judge a lease by whether `beat` stood still on their own monotonic clock: no wall clock is compared.
    `transactional_id` is what the holder writes with where a log fences writers by it (Kafka); "" elsewhere.
    """

    application: str
    term: int
    holder: str
    address: str
    beat: int
    transactional_id: str = ""


class GroupStore(Protocol):
    """See the module text. All calls may be made from one event loop; none blocks it for long."""

    # the lease
    async def lease(self, application: str) -> Lease | None:
        """The lease as last written; None where the application never had a coordinator."""

    async def acquire(self, application: str, holder: str, address: str, seen: Lease | None) -> Lease | None:
        """Take the lease at the next term, if it is still exactly what was `seen`; None where another candidate was
        faster. When it returns, the holder before can write nothing more, and owner records read from then on are final.
        """

    async def renew(self, lease: Lease) -> Lease:
        """Another beat. Raises LeaseLost."""

    # owner records
    async def owners(self, application: str) -> dict[str, OwnerRecord]:
        """The owner records by scope. The holder of the lease sees all that was ever written; others may lag."""

    async def record_owners(self, lease: Lease, records: Sequence[OwnerRecord]) -> None:
        """Write owner records under the lease, all or nothing. Raises LeaseLost."""

    # metadata
    async def metadata(self, application: str, kind: MetadataKind, key: str) -> bytes | None:
        """One value, or None."""

    async def metadata_of(self, application: str, kind: MetadataKind, *, settled: bool = False) -> dict[str, bytes]:
        """All values of a kind by key, in the order of the keys. `settled`: with all that was written before this call, also what
        readers are not given yet. Raises LogBusy, settled, where a transaction stays open."""

    async def metadata_of_all(self, kind: MetadataKind, key: str) -> dict[str, bytes]:
        """The value of one key of every application that has it, by application."""

    async def put_metadata(
        self, application: str, kind: MetadataKind, key: str, value: bytes | None, *, lease: Lease | None = None
    ) -> None:
        """Write (or with None remove) a value. Raises LeaseLost; StateError for a kind that is written under a lease
        without one, and for a lease with a kind that is not."""

    async def replace_metadata(
        self, application: str, kind: MetadataKind, key: str, seen: bytes | None, value: bytes | None
    ) -> bool:
        """Write (or with None remove) a value only where the stored one still is what was `seen` (None: not there); whether
        that was done. Raises StateError for a kind that is written under a lease."""
