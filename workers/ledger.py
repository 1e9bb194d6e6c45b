"""The coordinator's ledger on the log: joins orchestrator.ledger and state.log.

One rule: the lease guards each write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from orchestrator.ledger import Deposed
from orchestrator.model import Owner, TaskId
from state.errors import LeaseLost
from state.log.protocol import Lease, Log, OwnerRecord

OPERATION, GENERATION = "operation", "generation"


class LogLedger:
    """Owner records, fences and operations of one application under one lease."""

    def __init__(self, log: Log, lease: Lease) -> None:
        self._log = log
        self._lease = lease
        self.term = lease.term

    async def renew(self) -> None:
        try:
            self._lease = await self._log.renew(self._lease)
        except LeaseLost as error:
            raise Deposed(str(error)) from error

    async def owners(self) -> Sequence[Owner]:
        found = await self._log.owners(self._lease.application)
        return [Owner(TaskId.parse(o.scope), o.epoch, o.member, o.writer, o.term) for o in found.values()]

    async def record_owners(self, records: Sequence[Owner]) -> None:
        rows = [OwnerRecord(str(r.task), r.epoch, r.member, r.writer, r.term) for r in records]
        try:
            await self._log.record_owners(self._lease, rows)
        except LeaseLost as error:
            raise Deposed(str(error)) from error

    async def fence(self, writer: str) -> tuple[TaskId, ...]:
        try:
            return tuple(sorted(TaskId.parse(scope) for scope in await self._log.fence(self._lease, writer)))
        except LeaseLost as error:
            raise Deposed(str(error)) from error

    async def generation(self) -> int:
        return int(await self._log.note(self._lease.application, GENERATION, GENERATION) or 0)

    async def put_generation(self, generation: int) -> None:
        await self._put(GENERATION, GENERATION, b"%d" % generation)

    async def operation(self) -> Mapping[str, object] | None:
        found = await self._log.note(self._lease.application, OPERATION, "scale-down")
        return json.loads(found) if found else None

    async def put_operation(self, facts: Mapping[str, object] | None) -> None:
        await self._put(OPERATION, "scale-down", None if facts is None else json.dumps(facts).encode())

    async def _put(self, kind: str, key: str, value: bytes | None) -> None:
        try:
            await self._log.put_note(self._lease.application, kind, key, value, lease=self._lease)
        except LeaseLost as error:
            raise Deposed(str(error)) from error
